// The row processor's kernels, compiled once for each instruction set.
#include "lanes/lanes.h"

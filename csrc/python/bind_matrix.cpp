#include "python/bind.h"

namespace forerun {

void bind_matrix(nanobind::module_&) {}

}  // namespace forerun

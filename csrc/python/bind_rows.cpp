#include "python/bind.h"

namespace forerun {

void bind_rows(nanobind::module_&) {}

}  // namespace forerun

#include "python/bind.h"

namespace forerun {

void bind_decoder(nanobind::module_&) {}

}  // namespace forerun

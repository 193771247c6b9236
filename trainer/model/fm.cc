#include <memory>

#include "trainer/model/factorization_machine.h"
#include "trainer/model/model_list.h"

namespace psd {

NetworkMaker readFm(NamedOptions& given) {
  const auto dim = static_cast<uint32_t>(given.count("dim", 8, 1, kTableDimMax));
  return [dim] { return std::make_shared<FactorizationMachine>(dim); };
}

}  // namespace psd

#include "trainer/loop/fragment_steps.h"

#include <string>
#include <utility>

#include "trainer/loop/non_finite.h"

namespace psd {

FragmentSteps::FragmentSteps(Client& client, Model& model, const LocalSteps& local,
                             const std::vector<ShardRange>& shards, FragmentExchange::Observer observer)
    : model_(model),
      optimizer_(local.inner.value_or(InnerOptimizer{.rate = local.rate})),
      inner_(optimizer_),
      exchange_(client, local, shards, std::move(observer)) {}

Status FragmentSteps::begin() {
  if (std::exchange(begun_, true)) return {};
  return exchange_.begin(model_.parameters(), model_.spareParameters());
}

double FragmentSteps::step(uint32_t samples) {
  exchange_.stepped(samples);
  const double rate = optimizer_.rateAt(exchange_.progress());
  inner_.step(rate, model_.gradients(), model_.parameters());
  return rate;
}

Status FragmentSteps::exchange(bool last) { return withLocation(exchange_.exchange(last)); }

Status FragmentSteps::settle() { return withLocation(exchange_.settle()); }

Status FragmentSteps::withLocation(Status status) {
  if (status.ok() || status.error().code != ErrorCode::nonFinite) return status;
  static_cast<void>(exchange_.settle());  // pulls in flight write the values examined below
  const std::string where = describeNonFinite(model_.spec(), model_.spareParameters());
  if (where.empty()) return status;
  return {ErrorCode::nonFinite,
          "after local steps " + where + ", so the update was rejected; a lower learning rate may help"};
}

}  // namespace psd

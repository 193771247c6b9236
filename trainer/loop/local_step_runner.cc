#include "trainer/loop/local_step_runner.h"

#include <string>
#include <utility>

#include "trainer/loop/non_finite.h"

namespace psd {

LocalStepRunner::LocalStepRunner(Client& client, Model& model, const LocalSteps& local,
                                 const std::vector<ShardRange>& shards, FragmentExchange::Observer observer)
    : model_(model),
      optimizer_(local.inner.value_or(InnerOptimizer{.rate = local.rate})),
      inner_(optimizer_),
      exchange_(client, local, shards, std::move(observer)) {}

Status LocalStepRunner::begin() {
  if (std::exchange(begun_, true)) return exchange_.ready();
  return exchange_.begin(model_.parameters(), model_.spareParameters());
}

double LocalStepRunner::step(uint32_t samples) {
  exchange_.stepped(samples);
  const double rate = optimizer_.rateAt(exchange_.progress());
  inner_.step(rate, model_.gradients(), model_.parameters());
  return rate;
}

Status LocalStepRunner::exchange(bool last) { return withLocation(exchange_.exchange(last)); }

Status LocalStepRunner::settle() { return withLocation(exchange_.settle()); }

Status LocalStepRunner::withLocation(Status status) {
  if (status.ok() || status.error().code != ErrorCode::nonFinite) return status;
  static_cast<void>(exchange_.settle());  // pulls in flight write the values examined below
  const std::string where = describeNonFinite(model_.spec(), model_.spareParameters());
  if (where.empty()) return status;
  return {ErrorCode::nonFinite,
          "after local steps " + where + ", so the update was rejected; a lower learning rate may help"};
}

}  // namespace psd

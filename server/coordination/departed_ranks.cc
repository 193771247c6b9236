#include "server/coordination/departed_ranks.h"

#include <utility>

#include <spdlog/spdlog.h>

namespace psd {

void DepartedRanks::keep(const Departed& departed, std::function<void()> then) {
  if (closed_ || departed.ranks == kept_) return then();
  kept_ = departed.ranks;
  done_ = done_
              .addBranch()  // one at a time: the newest set is written last
              .then([this, departed] { return hosting_.saveDepartedRanks(departed); })
              .catch_([](kj::Exception&& exception) {  // no thread could be started
                return Status(ErrorCode::internal, exception.getDescription().cStr());
              })
              .then([this, departed, then = std::move(then)](const Status& kept) {
                if (!kept.ok()) {
                  spdlog::error("the next daemon would wait for trainers that are done: {}", kept.message());
                }
                if (departed.ranks == kept_) then();
              })
              .fork();
}

}  // namespace psd

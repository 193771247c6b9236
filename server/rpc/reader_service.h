#pragma once

#include "server/rpc/counted_service.h"
#include "server/rpc/pull_calls.h"

namespace psd {

/// A peer that reads without being a trainer. Belongs to the connection's loop.
class ReaderService final : public CountedService<schema::Reader> {
 public:
  ReaderService(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model)
      : CountedService(std::move(connection)), pulls_(connection_, std::move(model), std::nullopt, nullptr) {}

 protected:
  kj::Promise<void> pull(PullContext context) override { return pulls_.pull(context); }

 private:
  PullCalls pulls_;
};

}  // namespace psd

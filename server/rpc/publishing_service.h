#pragma once

#include <memory>
#include <vector>

#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"
#include "server/service/administration.h"

namespace psd {

/// Calls to publish versions of weights that are trained elsewhere. Belongs to the connection's loop.
class PublishingService final : public CountedService<schema::Publishing> {
 public:
  /// `administration` outlives it.
  PublishingService(std::shared_ptr<Connection> connection, Administration& administration)
      : CountedService(std::move(connection), true), administration_(administration) {}

 protected:
  kj::Promise<void> declare(DeclareContext context) override;
  kj::Promise<void> begin(BeginContext context) override;

 private:
  Status take(schema::Publishing::DeclareParams::Reader params);
  void answer(BeginContext context, const Result<PartsIntake::Begun>& begun);

  Administration& administration_;
  std::vector<VersionPart> declared_;
  std::vector<ByteBudget::Lease> room_;  // for them
  size_t waiting_ = 0;                   // calls of begin()
};

}  // namespace psd

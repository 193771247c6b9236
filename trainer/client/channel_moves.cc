// The part of Channel that handles moves of the model to other daemons.

#include <memory>
#include <utility>

#include "common/wire/convert.h"
#include "common/wire/login.h"
#include "trainer/client/channel.h"
#include "trainer/client/transport/sanitized.h"

namespace psd {

void Channel::setPendingMove(std::shared_ptr<PendingMove> pendingMove) {
  pendingMove_ = std::move(pendingMove);
}

std::shared_ptr<const MoveNotification> Channel::watchMove() {
  if (moveNotification_) return moveNotification_;
  moveNotification_ = std::make_shared<MoveNotification>();
  auto over = kj::defer([heard = moveNotification_] { heard->end(); });
  if (connection_.ended()) return moveNotification_;
  moved_ = connection_.reading()
               .movedRequest()
               .send()
               .then([this](capnp::Response<schema::Reading::MovedResults> answer) {
                 auto places = wire::readDaemonAddresses(connection_.server(), answer.getTo());
                 if (places.ok()) moveNotification_->set(*std::move(places));
               })
               .attach(kj::mv(over))
               // An older daemon does not support the call; a broken connection shows in the next one.
               .eagerlyEvaluate([](kj::Exception&&) {});
  return moveNotification_;
}

kj::Promise<Result<DaemonAddresses>> Channel::quiesce(uint64_t move, const std::string& cannot) {
  return connection_.call([&] {
    auto request = connection_.trainer().quiesceRequest();
    request.setMove(move);
    request.setCannot(cannot.c_str());
    return request.send().then([server = connection_.server()](
                                   capnp::Response<schema::QuiesceResult> answer) -> Result<DaemonAddresses> {
      if (answer.isError()) return sanitized(wire::readError(answer.getError()));
      if (answer.isContinueHere()) return DaemonAddresses();
      PSD_ASSIGN_OR_RETURN(DaemonAddresses places, wire::readDaemonAddresses(server, answer.getMoved()));
      if (!places.empty()) return places;
      return Error{ErrorCode::protocolMismatch, server + ": reports a move of the model without addresses"};
    });
  });
}

}  // namespace psd

// The part of Channel that handles moves of the model to other daemons.

#include <memory>
#include <utility>

#include "common/wire/convert.h"
#include "common/wire/login.h"
#include "trainer/client/channel.h"
#include "trainer/client/transport/sanitized.h"

namespace psd {

void Channel::noteMoves(std::shared_ptr<MoveAsked> asked) { moveAsked_ = std::move(asked); }

std::shared_ptr<const MoveHeard> Channel::hearOfMove() {
  if (moveHeard_) return moveHeard_;
  moveHeard_ = std::make_shared<MoveHeard>();
  auto over = kj::defer([heard = moveHeard_] { heard->end(); });
  if (connection_.ended()) return moveHeard_;
  moved_ = connection_.reading()
               .movedRequest()
               .send()
               .then([this](capnp::Response<schema::Reading::MovedResults> answer) {
                 auto places = wire::readPlaces(connection_.server(), answer.getTo());
                 if (places.ok()) moveHeard_->tell(*std::move(places));
               })
               .attach(kj::mv(over))
               // An older daemon does not support the call; a broken connection shows in the next one.
               .eagerlyEvaluate([](kj::Exception&&) {});
  return moveHeard_;
}

kj::Promise<Result<DaemonPlaces>> Channel::stepAside(uint64_t move, const std::string& cannot) {
  return connection_.call([&] {
    auto request = connection_.trainer().stepAsideRequest();
    request.setMove(move);
    request.setCannot(cannot.c_str());
    return request.send().then([server = connection_.server()](
                                   capnp::Response<schema::StepAsideResult> answer) -> Result<DaemonPlaces> {
      if (answer.isError()) return sanitized(wire::readError(answer.getError()));
      if (answer.isGoOn()) return DaemonPlaces();
      PSD_ASSIGN_OR_RETURN(DaemonPlaces places, wire::readPlaces(server, answer.getMoved()));
      if (!places.empty()) return places;
      return Error{ErrorCode::protocolMismatch, server + ": reports a move of the model without addresses"};
    });
  });
}

}  // namespace psd

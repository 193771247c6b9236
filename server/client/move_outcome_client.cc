#include "server/client/move_outcome_client.h"

#include <algorithm>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "common/os/socket.h"
#include "common/text/text.h"
#include "common/tls/connect.h"
#include "common/wire/convert.h"
#include "schema/psd.capnp.h"

namespace psd {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

milliseconds timeLeft(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  return std::max(left, milliseconds(1));
}

Result<MoveOutcome> askAt(const std::string& text, const MoveLead& lead, uint64_t move, const TlsFiles& tls,
                          Clock::time_point deadline) {
  PSD_ASSIGN_OR_RETURN(const Address address, parseAddress(text));
  PSD_ASSIGN_OR_RETURN(OwnFd fd, connectTo(address, timeLeft(deadline)));
  try {
    auto io = kj::setupAsyncIo();
    auto& timer = io.provider->getTimer();
    const auto until = timer.now() + timeLeft(deadline).count() * kj::MILLISECONDS;
    PSD_ASSIGN_OR_RETURN(
        wire::Socket socket,
        timer.timeoutAt(until, streamOver(io, std::move(fd), address, tls)).wait(io.waitScope));
    capnp::TwoPartyClient client(*socket.stream);
    auto request = client.bootstrap().castAs<schema::Login>().moveOutcomeRequest();
    request.setMove(move);
    request.setDaemon(lead.daemon);
    const uint16_t told = timer
                              .timeoutAt(until, request.send().then([](auto&& answer) {
                                return static_cast<uint16_t>(answer.getOutcome());
                              }))
                              .wait(io.waitScope);
    if (told > static_cast<uint16_t>(MoveOutcome::committed)) return MoveOutcome::unknown;
    return static_cast<MoveOutcome>(told);
  } catch (const kj::Exception& exception) {
    return Error{ErrorCode::unavailable,
                 address.toString() + ": " + printable(wire::textIn(exception.getDescription()))};
  }
}

}  // namespace

Result<MoveOutcome> askMoveOutcome(const MoveLead& lead, uint64_t move, const TlsFiles& tls,
                                   milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  Result<MoveOutcome> last = Error{ErrorCode::unavailable, "the lead has no address"};
  for (const std::string& address : lead.addresses) {
    const auto told = askAt(address, lead, move, tls, deadline);
    if (told.ok() && (*told == MoveOutcome::committed || *told == MoveOutcome::stays)) return told;
    // Daemons other than the lead know less.
    if (!last.ok() || (told.ok() && *told == MoveOutcome::underWay)) last = told;
    if (Clock::now() >= deadline) break;
  }
  return last;
}

}  // namespace psd

#pragma once

#include <chrono>
#include <string>
#include <type_traits>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/os/socket.h"
#include "common/text/text.h"
#include "common/tls/connect.h"
#include "common/wire/convert.h"
#include "common/wire/login.h"
#include "schema/psd.capnp.h"
#include "server/client/patience.h"

namespace psd {

// One connection to a daemon, for a command: connects, logs in, makes its calls, and turns what goes wrong
// into one Error that names the address. Each function blocks.

/// Appended to the error if the daemon did not answer a request of an admin in time.
inline constexpr const char* kContinues = "; the daemon continues with it, see its log";

/// How far a conversation with a daemon came.
enum class Stage { login, request };

/// The Error for a conversation that an exception of Cap'n Proto ended at `stage`. `late` is appended to it
/// if the daemon did not answer a request in time.
Error brokenOff(const kj::Exception& exception, const Address& address, std::chrono::milliseconds timeout,
                Stage stage, const char* late);

/// Prefixes an error with the daemon's address.
template <class T>
Result<T> fromDaemon(const Address& address, Result<T> outcome) {
  if (outcome.ok() || outcome.message().starts_with(address.toString())) return outcome;
  return Error{outcome.error().code, address.toString() + ": " + outcome.message()};
}

/// Connects, logs in, and runs `talk(login, network)` or `talk(login, network, timer)`; exceptions from Cap'n
/// Proto become an Error, with `late` as for brokenOff().
template <class T, class Talk>
Result<T> withLogin(const Address& address, const Credentials& credentials, std::chrono::milliseconds timeout,
                    const char* late, Talk talk, Patience patience = Patience::asToConnect) {
  PSD_ASSIGN_OR_RETURN(OwnFd fd, connectTo(address, timeout));
  Stage stage = Stage::login;
  try {
    auto io = kj::setupAsyncIo();
    auto& timer = io.provider->getTimer();
    const auto deadline = timer.now() + timeout.count() * kj::MILLISECONDS;
    PSD_ASSIGN_OR_RETURN(wire::Socket socket,
                         timer.timeoutAt(deadline, streamOver(io, std::move(fd), address, credentials.tls))
                             .wait(io.waitScope));
    capnp::TwoPartyClient client(*socket.stream);
    auto login = client.bootstrap().castAs<schema::Login>().loginRequest();
    wire::writeLogin("psd " PSD_VERSION, credentials.token, login);
    auto conversation = timer.timeoutAt(deadline, login.send().dropPipeline())
                            .then([&](capnp::Response<schema::LoginResult> answer) -> kj::Promise<Result<T>> {
                              const Status status = wire::readStatus(answer.getStatus());
                              if (!status.ok()) {
                                return Result<T>(status.error().code, address.toString() + ": " +
                                                                          printable(status.message(), 500));
                              }
                              stage = Stage::request;
                              if constexpr (std::is_invocable_v<Talk, schema::LoginResult::Reader,
                                                                capnp::TwoPartyClient&, kj::Timer&>) {
                                return talk(answer, client, timer);
                              } else {
                                return talk(answer, client);
                              }
                            });
    if (patience == Patience::endless) return fromDaemon(address, conversation.wait(io.waitScope));
    return fromDaemon(address, timer.timeoutAt(deadline, kj::mv(conversation)).wait(io.waitScope));
  } catch (const kj::Exception& exception) {
    return brokenOff(exception, address, timeout, stage, late);
  }
}

/// withLogin() for a caller with role reader; runs `talk(reading)`.
template <class Talk>
Result<std::string> withReading(const Address& address, const Credentials& credentials,
                                std::chrono::milliseconds timeout, Talk talk) {
  using Answer = Result<std::string>;
  return withLogin<std::string>(
      address, credentials, timeout, "",
      [&](schema::LoginResult::Reader login, capnp::TwoPartyClient&) -> kj::Promise<Answer> {
        if (!login.hasReading()) return Answer(wire::forbiddenError(address.toString(), "reader", login));
        return talk(login.getReading());
      });
}

/// withLogin() for a caller with role admin; runs `talk(admin, network)`.
template <class T, class Talk>
Result<T> withAdmin(const Address& address, const Credentials& credentials, std::chrono::milliseconds timeout,
                    Talk talk) {
  return withLogin<T>(
      address, credentials, timeout, kContinues,
      [&](schema::LoginResult::Reader login, capnp::TwoPartyClient& client) -> kj::Promise<Result<T>> {
        if (!login.hasAdmin()) return Result<T>(wire::forbiddenError(address.toString(), "admin", login));
        return talk(login.getAdmin(), client);
      });
}

}  // namespace psd

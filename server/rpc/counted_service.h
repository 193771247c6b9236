#pragma once

#include <memory>
#include <utility>

#include "common/wire/login.h"
#include "server/rpc/connection.h"

namespace psd {

/// Base of every service of a connection: its calls count against limits.calls, and so does the service
/// itself unless it is `fixed`, one of those that every connection has once. Once the caller's access is
/// revoked its calls fail. `Service` is a generated interface. Belongs to the connection's loop.
template <class Service>
class CountedService : public Service::Server {
 public:
  explicit CountedService(std::shared_ptr<Connection> connection, bool fixed = false)
      : connection_(std::move(connection)), held_(fixed ? nullptr : connection_->holdService()) {}

  capnp::Capability::Server::DispatchCallResult dispatchCall(
      uint64_t interface, uint16_t method,
      capnp::CallContext<capnp::AnyPointer, capnp::AnyPointer> context) override {
    if (const auto& revoked = connection_->caller().revoked()) {
      return {kj::Exception(kj::Exception::Type::FAILED, __FILE__, __LINE__,
                            kj::str(wire::kRevoked, revoked->message.c_str())),
              false};
    }
    auto result = Service::Server::dispatchCall(interface, method, context);
    result.promise = connection_->counted(kj::mv(result.promise));
    return result;
  }

 protected:
  const std::shared_ptr<Connection> connection_;

 private:
  const std::shared_ptr<const void> held_;  // null: fixed
};

}  // namespace psd

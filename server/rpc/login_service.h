#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"
#include "server/service/administration.h"

namespace psd {

/// What a connection begins with: the caller says which protocol it speaks, and gets a capability for each
/// thing that it may do. Belongs to the connection's loop.
class LoginService final : public CountedService<schema::Login> {
 public:
  /// `control` and `administration` outlive it.
  LoginService(std::shared_ptr<Connection> connection, ControlLoop& control, Administration& administration)
      : CountedService(std::move(connection), true), control_(control), administration_(administration) {}

 protected:
  kj::Promise<void> login(LoginContext context) override;

 private:
  struct Roles {
    schema::Reading::Client reading;
    schema::Training::Client training;
    schema::Admin::Client admin;
  };

  ControlLoop& control_;
  Administration& administration_;
  kj::Maybe<Roles> roles_;  // once given; one set for each who asks
};

}  // namespace psd

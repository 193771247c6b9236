#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"
#include "server/service/administration.h"

namespace psd {

/// The bootstrap interface of a connection: the caller states its protocol version and receives a capability
/// for each thing that its role permits. Belongs to the connection's loop.
class LoginService final : public CountedService<schema::Login> {
 public:
  /// The references outlive it.
  LoginService(std::shared_ptr<Connection> connection, ControlLoop& control, Administration& administration,
               Authenticator& authenticator)
      : CountedService(std::move(connection), true),
        control_(control),
        administration_(administration),
        authenticator_(authenticator) {}

 protected:
  kj::Promise<void> login(LoginContext context) override;
  kj::Promise<void> moveOutcome(MoveOutcomeContext context) override;

 private:
  /// Capabilities of a role.
  struct Roles {
    schema::Reading::Client reading;
    kj::Maybe<schema::Publishing::Client> publishing;
    kj::Maybe<schema::Training::Client> training;
    kj::Maybe<schema::Admin::Client> admin;
  };

  /// Answers a failed login after a delay, or drops the connection.
  kj::Promise<void> refuse(LoginContext context, const Error& error);
  Roles rolesOf(Role role);

  ControlLoop& control_;
  Administration& administration_;
  Authenticator& authenticator_;
  kj::Maybe<Roles> roles_;  // created at the first login and returned by later ones
};

}  // namespace psd

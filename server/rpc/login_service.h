#pragma once

#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"
#include "server/service/administration.h"

namespace psd {

/// What a connection begins with: the caller says which protocol it speaks, and gets a capability for each
/// thing that it may do, by its role. Belongs to the connection's loop.
class LoginService final : public CountedService<schema::Login> {
 public:
  /// The others outlive it.
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
  /// What a role gives.
  struct Roles {
    schema::Reading::Client reading;
    kj::Maybe<schema::Training::Client> training;
    kj::Maybe<schema::Admin::Client> admin;
  };

  /// Answers a login that failed: late, or not at all.
  kj::Promise<void> refuse(LoginContext context, const Error& error);
  Roles rolesOf(Role role);

  ControlLoop& control_;
  Administration& administration_;
  Authenticator& authenticator_;
  kj::Maybe<Roles> roles_;  // once given; one set for each who asks
};

}  // namespace psd

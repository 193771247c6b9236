// Reloading: how a Server switches to another configuration while trainers work.

#include <spdlog/spdlog.h>

#include "common/log/log.h"
#include "common/log/log_line.h"
#include "common/text/text.h"
#include "server/config/live_change.h"
#include "server/config/model_rules.h"
#include "server/daemon/server.h"

namespace psd {
namespace {

/// Everything that a reload reads.
struct Reading {
  LoadedConfig loaded;
  std::shared_ptr<const AuthRules> rules;
  TlsAcceptor::Files tls;
};

Result<Reading> readAgain(const Server::Reread& reread) {
  PSD_ASSIGN_OR_RETURN(LoadedConfig loaded, reread());
  PSD_ASSIGN_OR_RETURN(auto rules, AuthRules::read(loaded.config.auth));
  PSD_ASSIGN_OR_RETURN(auto tls, TlsAcceptor::read(loaded.config.tls));
  return Reading{std::move(loaded), std::move(rules), std::move(tls)};
}

std::string changesText(std::vector<std::string> changes) {
  std::erase(changes, "");
  return changes.empty() ? "no changes" : joined(changes, ", ");
}

}  // namespace

kj::Promise<std::string> Server::follow(std::shared_ptr<const AuthRules> rules) {
  std::string change = authenticator_.adopt(std::move(rules));
  return onEveryLoop([](EventLoop& loop) { loop.connections().recheckAccess(); })
      .then([change = std::move(change)]() mutable { return std::move(change); });
}

kj::Promise<Result<std::string>> Server::reload(const std::string& by) {
  // First, so that the outcome is logged to the new file.
  if (Status reopened = reopenLogFile(); !reopened.ok()) {
    spdlog::warn("the log stays in the previous file: {}", reopened.message());
  }
  return applyConfig(rereadOfFile(), by);
}

Server::Reread Server::rereadOfFile() const {
  if (!follows()) return reread_;
  // The primary determines the rules of the model.
  return [reread = reread_, rules = loaded_.effective]() -> Result<LoadedConfig> {
    PSD_ASSIGN_OR_RETURN(const LoadedConfig own, reread());
    return readDaemonConfig(underRules(rules, own.effective));
  };
}

kj::Promise<Result<std::string>> Server::set(const std::string& assignment, const std::string& by) {
  auto reread = rereadWith(assignment);
  if (!reread.ok()) return Result<std::string>(reread.error());
  return applyConfig(*std::move(reread), by);
}

kj::Promise<Result<std::string>> Server::checkChange(const std::string& assignment) {
  using Outcome = Result<std::string>;
  auto reread = assignment.empty() ? rereadOfFile() : rereadWith(assignment);
  if (!reread.ok()) return Outcome(reread.error());
  if (Status may = serving_.mayReconfigure(); !may.ok()) return Outcome(may.error());
  return background_.run<Result<Reading>>([reread = *std::move(reread)] { return readAgain(reread); })
      .then([this](const Result<Reading>& next) -> Outcome {
        if (!next.ok()) return next.error();
        PSD_RETURN_IF_ERROR(checkNextConfig(next->loaded));
        return changesText({describeChange(loaded_, next->loaded), tlsAcceptor_.changesTo(next->tls),
                            authenticator_.changesTo(*next->rules)});
      });
}

Result<Server::Reread> Server::rereadWith(const std::string& assignment) const {
  if (follows() && !isOfOneDaemon(assignment.substr(0, assignment.find_first_of(".=[")))) {
    return Error{ErrorCode::standby, "this daemon is not the primary: set the rules of the model there"};
  }
  return Reread([effective = loaded_.effective, assignment] { return readChanged(effective, assignment); });
}

Status Server::checkNextConfig(const LoadedConfig& next) const {
  PSD_RETURN_IF_ERROR(host_.checkOptimizer(next.config));
  LoadedConfig now = loaded_, after = next;
  host_.adoptServedOptimizers(now.config.groups);
  host_.adoptServedOptimizers(after.config.groups);
  PSD_RETURN_IF_ERROR(checkLiveChange(now, after));
  return host_.checkConfig(next.config, coordinator_.worldSize(), coordinator_.pushCodecs());
}

kj::Promise<Result<std::string>> Server::applyConfig(Reread reread, const std::string& by) {
  using Outcome = Result<std::string>;
  if (Status may = serving_.mayReconfigure(); !may.ok()) return Outcome(may.error());
  serving_.reconfigure(true);
  return background_.run<Result<Reading>>([reread = std::move(reread)] { return readAgain(reread); })
      .then([this](Result<Reading> next) -> kj::Promise<Outcome> {
        if (!next.ok()) return Outcome(next.error());
        if (Status may = checkNextConfig(next->loaded); !may.ok()) return Outcome(may.error());
        return changeTo(std::move(next->loaded))
            .then([this, rules = std::move(next->rules),
                   tls = std::move(next->tls)](Outcome outcome) mutable -> kj::Promise<Outcome> {
              if (!outcome.ok()) return outcome;
              std::vector<std::string> changes = {*std::move(outcome), tlsAcceptor_.adopt(std::move(tls))};
              return follow(rules).then([changes = std::move(changes)](std::string access) mutable {
                changes.push_back(std::move(access));
                return Outcome(changesText(std::move(changes)));
              });
            });
      })
      .then([this, by](Outcome outcome) {
        if (outcome.ok()) {
          counters_.reloads.add();
          const std::string line = *outcome + "; asked by " + by;
          logLine(spdlog::level::info, {.event = "reload", .by = by}, "reloaded the configuration: {}", line);
          coordinator_.events().add("reload", line, by);
        } else {
          counters_.reloadsRefused.add();
          const std::string line = outcome.message() + "; asked by " + by;
          logLine(spdlog::level::warn, {.event = "refused", .by = by}, "the configuration is unchanged: {}",
                  line);
          coordinator_.events().add("refused", "a new configuration: " + line, by);
        }
        return outcome;
      })
      .attach(kj::defer([this] { serving_.reconfigure(false); }));
}

kj::Promise<Result<std::string>> Server::changeTo(LoadedConfig next) {
  using Outcome = Result<std::string>;
  std::string change = describeChange(loaded_, next);
  if (change.empty()) return Outcome(std::move(change));
  auto target = std::make_shared<const LoadedConfig>(std::move(next));
  return onEveryLoop([](EventLoop& loop) { loop.gate().close(); })
      .then([this, target] { return changeWhileQuiesced(*target); })
      .catch_([](kj::Exception&& exception) {
        return Status(ErrorCode::internal, exception.getDescription().cStr());
      })
      .then([this](Status status) {
        auto config = std::make_shared<const DaemonConfig>(loaded_.config);  // the old one after an error
        const bool opens = !coordinator_.end().restarting();
        return onEveryLoop([config, opens](EventLoop& loop) {
                 loop.setConfig(config);
                 if (opens) loop.gate().open();
               })
            .then([status = std::move(status)] { return status; });
      })
      .then([target, change = std::move(change)](Status status) -> Outcome {
        if (!status.ok()) return status.error();
        return change;
      });
}

kj::Promise<Status> Server::whileQuiesced(std::function<kj::Promise<Status>()> work) {
  if (Status may = serving_.mayReconfigure(); !may.ok()) return may;
  serving_.reconfigure(true);
  return closeGates()
      .then([this, work = std::move(work)](bool atRest) -> kj::Promise<Status> {
        if (coordinator_.end().requested())
          return Status(ErrorCode::shuttingDown, "the daemon is shutting down");
        if (!atRest)
          return Status(ErrorCode::deadlineExceeded,
                        "gradients in flight were not complete within limits.drain_ms");
        return work();
      })
      .catch_([](kj::Exception&& exception) {
        return Status(ErrorCode::internal, exception.getDescription().cStr());
      })
      .attach(kj::defer([this] {
        if (!coordinator_.end().restarting()) openGates();
        serving_.reconfigure(false);
      }));
}

kj::Promise<Status> Server::changeWhileQuiesced(const LoadedConfig& next) {
  return settle([](EventLoop& loop) { return loop.atRest(); })
      .then([this, &next](bool atRest) -> kj::Promise<Status> {
        if (coordinator_.end().requested())
          return Status(ErrorCode::shuttingDown, "the daemon is shutting down");
        if (!atRest) {
          return Status(ErrorCode::deadlineExceeded,
                        "gradients in flight were not complete within limits.drain_ms (" +
                            std::to_string(loaded_.config.limits.drainMs) + "); nothing has changed");
        }
        const bool otherRules = rulesText(loaded_.effective) != rulesText(next.effective);
        if (otherRules && follows()) {
          return Status(ErrorCode::standby,
                        "the primary has changed the rules meanwhile; nothing was applied");
        }
        // The gradients that are left wait for other trainers. From here on nothing may fail, since settling
        // changes the model.
        const std::vector<bool> keep = samePolicies(loaded_, next);
        return host_.models().settle(keep).then([this, &next, keep, otherRules] {
          loaded_ = next;
          if (replicaSet_) replicaSet_->setOwnConfig(loaded_.effective);
          if (replicator_ && otherRules) replicator_->resetFollowers();  // the standby gets a new copy
          budgets_.follow(loaded_.config.limits);
          host_.adopt(std::make_shared<const DaemonConfig>(loaded_.config), keep);
          coordinator_.follow(runTermsOf(loaded_.config));
          const uint32_t most = connectionsMax();
          for (auto& listener : listeners_) listener->setConnectionsMax(most);
          setLogLevel(loaded_.config.log.level);
          return Status();
        });
      });
}

}  // namespace psd

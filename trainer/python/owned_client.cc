#include "trainer/python/owned_client.h"

#include <fmt/format.h>
#include <unistd.h>

#include "trainer/python/errors.h"

namespace nb = nanobind;

namespace psd::python {
namespace {

/// For a destructor, which cannot throw: whether no Ctrl-C is pending; a pending one stays pending.
bool noInterruptPending() {
  if (PyOS_InterruptOccurred() == 0) return true;
  PyErr_SetInterrupt();
  return false;
}

}  // namespace

OwnedClient::OwnedClient() : process_(getpid()) {}

OwnedClient::~OwnedClient() {
  if (isAnotherProcess()) {
    (void)thread_.release();
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without memory the process ends
    new std::shared_ptr<State>(state_);  // leaked: threads that do not exist here may hold its locks
    return;
  }
  end(noInterruptPending);
}

bool OwnedClient::isAnotherProcess() const { return getpid() != process_; }

void OwnedClient::checkUsable() const {
  if (isAnotherProcess()) {
    raise(
        {ErrorCode::invalidArgument,
         fmt::format("this client belongs to process {}; a process that was forked makes a client of its own",
                     process_)});
  }
  if (!thread_) raise({ErrorCode::invalidArgument, "this client is closed"});
}

void OwnedClient::connect(ClientOptions options) {
  check(thread_->run([state = state_, options = std::move(options)] {
    Result<std::unique_ptr<Client>> client = Client::connect(options);
    const std::lock_guard lock(state->mutex);
    if (client.ok()) state->client = std::move(*client);
    return client.status();
  }));
}

void OwnedClient::post(std::function<void(Client&)> work) {
  checkUsable();
  thread_->post([state = state_, work = std::move(work)] { work(*state->client); });
}

void OwnedClient::holdUntil(std::function<bool()> finished) {
  if (isAnotherProcess() || !thread_) return;
  thread_->post([state = state_, finished = std::move(finished)]() mutable {
    state->held.push_back(std::move(finished));
    state->dropFinished();
  });
}

void OwnedClient::onClientDestroyed(std::weak_ptr<void> owner, std::function<void()> drop) {
  thread_->post([state = state_, owner = std::move(owner), drop = std::move(drop)]() mutable {
    state->dropsBeforeClient.remove_if([](const auto& entry) { return entry.first.expired(); });
    state->dropsBeforeClient.emplace_back(std::move(owner), std::move(drop));
  });
}

void OwnedClient::keep(std::shared_ptr<void> what) {
  checkUsable();
  thread_->post(
      [state = state_, what = std::move(what)]() mutable { state->kept.push_back(std::move(what)); });
}

void OwnedClient::interrupt() {
  checkUsable();
  *interrupted_ = true;
  const std::lock_guard lock(state_->mutex);
  if (state_->client) state_->client->interrupt();
}

void OwnedClient::close() {
  bool raised = false;
  end([&raised] {
    raised = PyErr_CheckSignals() != 0;
    return !raised;
  });
  if (raised) throw nb::python_error();
}

void OwnedClient::end(const std::function<bool()>& keepWaiting) {
  if (!thread_ || isAnotherProcess()) return;
  interrupt();
  thread_->post([state = state_] { state->drop(); });
  const std::unique_ptr<ClientThread> thread = std::move(thread_);
  thread->end(keepWaiting);
}

void OwnedClient::State::dropFinished() {
  held.remove_if([](const std::function<bool()>& finished) { return finished(); });
}

void OwnedClient::State::drop() {
  for (const auto& [owner, drop] : dropsBeforeClient) {
    if (const std::shared_ptr<void> alive = owner.lock()) drop();
  }
  std::unique_ptr<Client> last;
  {
    const std::lock_guard lock(mutex);
    last = std::move(client);
  }
  last = nullptr;  // this ends all calls that use the caller's memory
  blockIfPythonIsFinalizing();
  held.clear();
  kept.clear();
}

}  // namespace psd::python

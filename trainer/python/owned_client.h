#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include <sys/types.h>

#include "trainer/client/client.h"
#include "trainer/python/client_thread.h"

namespace psd::python {

/// A Client and the thread that owns it. Shared by Python's objects for calls in progress. Used with the GIL,
/// by any thread.
class OwnedClient {
 public:
  OwnedClient();
  /// See close(). In a forked process, which does not have the thread, it does nothing.
  ~OwnedClient();

  /// Connects as Client::connect() does; throws its error.
  void connect(ClientOptions options);

  /// Runs `work(client)` on the thread and returns its result; see ClientThread::run(). Throws if the client
  /// is closed or belongs to another process.
  template <class Work>
  auto run(Work work) {
    checkUsable();
    return thread_->run([state = state_, work = std::move(work)]() mutable {
      state->dropFinished();
      return work(*state->client);
    });
  }
  /// run() for work that starts a call and returns a shared pointer to it. The call's arrays are held until
  /// it is finished(), even if a signal ends the caller's wait.
  template <class Work>
  auto begin(Work work) {
    checkUsable();
    return thread_->run([state = state_, work = std::move(work)]() mutable {
      state->dropFinished();
      const auto call = work(*state->client);
      state->held.push_back([call] { return call->finished(); });
      return call;
    });
  }
  /// Like begin(), but returns the call's answer. The thread blocks in wait() until the answer arrives, even
  /// if a signal has ended the caller's wait, and holds the call's arrays until then.
  template <class Work>
  auto complete(Work work) {
    return run([work = std::move(work)](Client& client) mutable { return work(client)->wait(); });
  }
  /// Like run(), but does not wait.
  void post(std::function<void(Client&)> work);

  /// Keeps the captures of `finished` alive until it returns true; polled on the thread. For a call that no
  /// caller waits for.
  void holdUntil(std::function<bool()> finished);
  /// Calls `drop` on the thread before the client is destroyed, unless `owner` has expired.
  void onClientDestroyed(std::weak_ptr<void> owner, std::function<void()> drop);

  /// Keeps `what` until after the client is destroyed, and releases it on the thread.
  void keep(std::shared_ptr<void> what);

  /// Throws if the client is closed or belongs to another process.
  void checkUsable() const;
  /// See Client::interrupt().
  void interrupt();
  /// Whether interrupt() or close() was called. Readable from any thread; may outlive this object.
  std::shared_ptr<const std::atomic<bool>> interrupted() const { return interrupted_; }
  /// Interrupts and destroys the client. No call may follow. If a signal handler raises meanwhile, throws its
  /// exception and does not wait for the client's goodbye.
  void close();

 private:
  /// Used on the thread, except `client`, which interrupt() also uses.
  struct State {
    std::mutex mutex;  // guards the pointer `client`: its changes, and its use by interrupt()
    std::unique_ptr<Client> client;
    std::list<std::shared_ptr<void>> kept;
    std::list<std::function<bool()>> held;
    std::list<std::pair<std::weak_ptr<void>, std::function<void()>>> dropsBeforeClient;

    void dropFinished();
    void drop();
  };

  bool isAnotherProcess() const;
  /// See close(); waits while `keepWaiting` returns true.
  void end(const std::function<bool()>& keepWaiting);

  const pid_t process_;
  const std::shared_ptr<std::atomic<bool>> interrupted_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::unique_ptr<ClientThread> thread_ = std::make_unique<ClientThread>();  // null once closed
};

}  // namespace psd::python

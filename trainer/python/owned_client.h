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

/// A Client and the thread that owns it. Python's objects for calls under way share it. Used with the GIL, by
/// any thread.
class OwnedClient {
 public:
  OwnedClient();
  /// As close(). In a process that was forked, where there are no threads of its own, it does nothing.
  ~OwnedClient();

  /// Connects as Client::connect() does; throws its error.
  void connect(ClientOptions options);

  /// Runs `work(client)` on the thread and gives what it returns; see ClientThread::run(). Throws where the
  /// client is closed, or another process's.
  template <class Work>
  auto run(Work work) {
    checkUsable();
    return thread_->run([state = state_, work = std::move(work)]() mutable {
      state->dropFinished();
      return work(*state->client);
    });
  }
  /// run() of work that begins a call, and gives a shared pointer to it: its arrays are held until the call
  /// says finished(), also where a signal leaves nobody to wait for it.
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
  /// As begin(), and gives the call's answer. The thread itself is in wait() until that is there, also where
  /// a signal has ended the caller's wait, and so it holds the call's arrays.
  template <class Work>
  auto complete(Work work) {
    return run([work = std::move(work)](Client& client) mutable { return work(client)->wait(); });
  }
  /// run() without waiting for it.
  void post(std::function<void(Client&)> work);

  /// Holds what a call uses that nobody waits for: until `finished`, asked on the thread, is true.
  void holdUntil(std::function<bool()> finished);
  /// Calls `drop` on the thread before the client goes, unless `owner` has gone before.
  void dropBeforeClient(std::weak_ptr<void> owner, std::function<void()> drop);

  /// Keeps it for longer than the client, and drops it on the thread.
  void keep(std::shared_ptr<void> what);

  /// Throws where no call may follow.
  void checkUsable() const;
  /// See Client::interrupt().
  void interrupt();
  /// Whether interrupt() or close() was called, for any thread to ask, and for longer than this object.
  std::shared_ptr<const std::atomic<bool>> interrupted() const { return interrupted_; }
  /// Interrupts the client and drops it. No call may follow. Throws what a signal's handler raises meanwhile,
  /// at which it does not wait for the client's goodbye.
  void close();

 private:
  /// Used on the thread, but for `client`, which interrupt() uses too.
  struct State {
    std::mutex mutex;  // guards `client` while the thread does not use it
    std::unique_ptr<Client> client;
    std::list<std::shared_ptr<void>> kept;
    std::list<std::function<bool()>> held;
    std::list<std::pair<std::weak_ptr<void>, std::function<void()>>> droppedBefore;

    void dropFinished();
    void drop();
  };

  bool isAnotherProcess() const;
  /// As close(), as long as `goesOn` says.
  void end(const std::function<bool()>& goesOn);

  const pid_t process_;
  const std::shared_ptr<std::atomic<bool>> interrupted_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::unique_ptr<ClientThread> thread_ = std::make_unique<ClientThread>();  // null once closed
};

}  // namespace psd::python

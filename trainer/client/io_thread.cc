#include "trainer/client/io_thread.h"

#include <csignal>
#include <exception>
#include <optional>
#include <stdexcept>

#include <pthread.h>

namespace psd {

IoThread::IoThread() {
  std::promise<void> running;
  std::future<void> started = running.get_future();
  // The program handles signals: the new thread inherits a mask that blocks them all.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto restore = kj::defer([&before] { pthread_sigmask(SIG_SETMASK, &before, nullptr); });
  thread_ = std::thread([this, &running] {
    pthread_setname_np(pthread_self(), "psd-client-io");
    std::optional<kj::AsyncIoContext> io;
    try {
      io.emplace(kj::setupAsyncIo());
    } catch (const kj::Exception& exception) {
      const std::runtime_error why(exception.getDescription().cStr());
      running.set_exception(std::make_exception_ptr(why));
      return;
    }
    run(*io, running);
  });
  try {
    started.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

void IoThread::run(kj::AsyncIoContext& io, std::promise<void>& running) {
  auto exit = kj::newPromiseAndFulfiller<void>();
  io_ = &io;
  executor_ = kj::getCurrentThreadExecutor().addRef();
  exit_ = kj::mv(exit.fulfiller);
  auto serving = serve().eagerlyEvaluate(nullptr);
  running.set_value();
  exit.promise.wait(io.waitScope);
  exit_ = nullptr;
  std::lock_guard lock(mutex_);
  wake_ = nullptr;
}

IoThread::~IoThread() {
  runSync([this](kj::AsyncIoContext&) { exit_->fulfill(); });
  thread_.join();
}

void IoThread::post(std::function<void()> work) {
  Wake wake;
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
    wake = kj::mv(wake_);
  }
  if (wake.get() != nullptr) wake->fulfill();
}

void IoThread::runPosted() {
  std::vector<std::function<void()>> posted;
  {
    std::lock_guard lock(mutex_);
    posted.swap(posted_);
  }
  for (const auto& work : posted) work();
}

kj::Promise<void> IoThread::serve() {
  auto next = kj::newPromiseAndCrossThreadFulfiller<void>();
  {
    std::lock_guard lock(mutex_);
    wake_ = kj::mv(next.fulfiller);
  }
  runPosted();  // posts that arrived while wake_ was null
  return next.promise.then([this] { return serve(); });
}

}  // namespace psd

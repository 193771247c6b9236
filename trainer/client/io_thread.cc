#include "trainer/client/io_thread.h"

#include <csignal>
#include <future>

#include <pthread.h>

namespace psd {

IoThread::IoThread() {
  std::promise<void> running;
  // Signals are the program's business: the new thread inherits a mask that blocks them all.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, &running] {
    pthread_setname_np(pthread_self(), "psd-client-io");
    auto io = kj::setupAsyncIo();
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
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  running.get_future().wait();
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
  runPosted();  // what came while nothing would have woken the loop
  return next.promise.then([this] { return serve(); });
}

}  // namespace psd

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
    running.set_value();
    exit.promise.wait(io.waitScope);
    exit_ = nullptr;
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  running.get_future().wait();
}

IoThread::~IoThread() {
  executor_->executeSync([this] { exit_->fulfill(); });
  thread_.join();
}

}  // namespace psd

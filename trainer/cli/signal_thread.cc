#include "trainer/cli/signal_thread.h"

namespace psd {

SignalThread::SignalThread() {
  sigset_t taken;
  sigemptyset(&taken);
  sigaddset(&taken, SIGINT);
  sigaddset(&taken, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &taken, &previous_);
  thread_ = std::thread([taken, over = over_.get_future()] {
    pthread_sigmask(SIG_UNBLOCK, &taken, nullptr);
    over.wait();
  });
}

SignalThread::~SignalThread() {
  over_.set_value();
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

}  // namespace psd

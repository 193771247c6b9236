#include "common/os/end_by_signal.h"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/support/catch.h"

namespace psd {
namespace {

/// The wait status of a process that ended.
int statusOf(pid_t process) {
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

/// A child without the test's signal handlers that waits for a signal.
[[noreturn]] void waitForSignal(int ready) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) std::signal(signal, SIG_DFL);
  endBySignals();
  [[maybe_unused]] const ssize_t told = write(ready, "r", 1);
  alarm(60);
  for (;;) pause();
}

/// Reads the one byte that the child writes when it is ready; false: it ended before.
bool whenReady(int pipe) {
  char byte = 0;
  ssize_t got = 0;
  while ((got = read(pipe, &byte, 1)) < 0 && errno == EINTR) {
  }
  return got == 1;
}

TEST_CASE("a signal ends a process like its default action") {
  const int signal = GENERATE(SIGINT, SIGTERM, SIGHUP);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) waitForSignal(ends[1]);
  close(ends[1]);
  REQUIRE(whenReady(ends[0]));
  close(ends[0]);
  REQUIRE(kill(child, signal) == 0);
  const int status = statusOf(child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == signal);
}

TEST_CASE("an ignored signal stays ignored") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGINT, SIG_IGN);
    endBySignals();
    std::raise(SIGINT);
    _exit(7);
  }
  const int status = statusOf(child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("a signal ends process 1 of a container") {
  const int signal = GENERATE(SIGINT, SIGTERM);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  constexpr int kNotPermitted = 100;
  const pid_t outer = fork();
  REQUIRE(outer >= 0);
  if (outer == 0) {
    if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) _exit(kNotPermitted);
    const pid_t first = fork();
    if (first < 0) _exit(kNotPermitted);
    if (first == 0) waitForSignal(ends[1]);
    close(ends[1]);
    if (!whenReady(ends[0])) _exit(101);
    kill(first, signal);
    const int status = statusOf(first);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 102);
  }
  close(ends[0]);
  close(ends[1]);
  const int status = statusOf(outer);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotPermitted) {
    WARN("this system does not permit process namespaces");
    return;
  }
  CHECK(WEXITSTATUS(status) == 128 + signal);
}

}  // namespace
}  // namespace psd

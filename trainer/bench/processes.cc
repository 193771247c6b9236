#include "trainer/bench/processes.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <optional>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/os/socket.h"

namespace psd {
namespace {

// Messages of a process to its parent; the parent answers kBarrier with the same byte.
constexpr char kBarrier = 't';
constexpr char kResult = 'r';  // then an error code or -1, a length, and the result or the message

struct ResultHeader {
  int64_t errorCode = -1;
  uint64_t bytes = 0;
};

bool sendAll(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool receiveAll(int fd, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t received = recv(fd, at, size, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    at += received;
    size -= static_cast<size_t>(received);
  }
  return true;
}

Error systemError(const char* what) {
  return {ErrorCode::io, std::string("starting a trainer process: ") + what + ": " + std::strerror(errno)};
}

/// Runs in the child, from the fork to its end.
[[noreturn]] void runChild(
    int parent, uint32_t number,
    const std::function<Result<std::string>(uint32_t number, const Barrier& barrier)>& work) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Barrier barrier = [parent] {
    char tag = kBarrier;
    if (!sendAll(parent, &tag, 1) || !receiveAll(parent, &tag, 1)) _exit(1);
  };
  Result<std::string> result = Error{ErrorCode::internal, "trainer process: an unknown exception"};
  try {
    result = work(number, barrier);
  } catch (const std::exception& exception) {
    result = Error{ErrorCode::internal, std::string("trainer process: ") + exception.what()};
  }
  const std::string& text = result.ok() ? *result : result.message();
  const ResultHeader header{result.ok() ? -1 : static_cast<int64_t>(result.error().code), text.size()};
  const bool sent = sendAll(parent, &kResult, 1) && sendAll(parent, &header, sizeof header) &&
                    sendAll(parent, text.data(), text.size());
  _exit(sent ? 0 : 1);  // the parent flushes and closes its own files
}

/// A child process, in its parent. Owned by one thread.
class Child {
 public:
  static Result<Child> start(
      uint32_t number,
      const std::function<Result<std::string>(uint32_t number, const Barrier& barrier)>& work) {
    std::array<int, 2> fds{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0) return systemError("socketpair");
    OwnFd near(fds[0]), far(fds[1]);
    const pid_t pid = fork();
    if (pid < 0) return systemError("fork");
    if (pid == 0) {
      near = OwnFd();
      runChild(far.get(), number, work);
    }
    return Child(number, pid, std::move(near));
  }
  Child(Child&& other) noexcept
      : number_(other.number_),
        pid_(std::exchange(other.pid_, 0)),
        socket_(std::move(other.socket_)),
        result_(std::move(other.result_)) {}
  Child& operator=(Child&&) = delete;
  /// Kills the process if it is still running.
  ~Child() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  /// Blocks until the process calls barrier() (true) or has ended (false).
  bool awaitBarrier() {
    if (result_) return false;
    char tag = 0;
    if (!receiveAll(socket_.get(), &tag, 1)) return ended();
    if (tag == kBarrier) return true;
    ResultHeader header;
    if (!receiveAll(socket_.get(), &header, sizeof header)) return ended();
    std::string text(header.bytes, '\0');
    if (!receiveAll(socket_.get(), text.data(), text.size())) return ended();
    if (header.errorCode < 0) {
      result_ = std::move(text);
    } else {
      result_ = Error{static_cast<ErrorCode>(header.errorCode), std::move(text)};
    }
    return false;
  }
  void release() { sendAll(socket_.get(), &kBarrier, 1); }
  const Result<std::string>& result() const { return *result_; }

 private:
  Child(uint32_t number, pid_t pid, OwnFd socket) : number_(number), pid_(pid), socket_(std::move(socket)) {}

  /// The process closed its socket without a result: the result is an Error with its exit status. Always
  /// false.
  bool ended() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    result_ = Error{ErrorCode::internal,
                    "trainer process " + std::to_string(number_) +
                        (WIFSIGNALED(status) ? " was ended by signal " + std::to_string(WTERMSIG(status))
                                             : " ended with status " + std::to_string(WEXITSTATUS(status)))};
    return false;
  }

  uint32_t number_;
  pid_t pid_;
  OwnFd socket_;
  std::optional<Result<std::string>> result_;
};

}  // namespace

Result<std::vector<std::string>> runInProcesses(
    uint32_t count, const std::function<Result<std::string>(uint32_t number, const Barrier& barrier)>& work) {
  std::vector<Child> children;
  for (uint32_t number = 0; number < count; number++) {
    PSD_ASSIGN_OR_RETURN(Child child, Child::start(number, work));
    children.push_back(std::move(child));
  }
  for (;;) {
    std::vector<Child*> waiting;
    for (Child& child : children) {
      if (child.awaitBarrier()) waiting.push_back(&child);
    }
    if (waiting.empty()) break;
    for (Child* child : waiting) child->release();
  }
  std::vector<std::string> results;
  for (const Child& child : children) {
    PSD_RETURN_IF_ERROR(child.result().status());
    results.push_back(*child.result());
  }
  return results;
}

}  // namespace psd

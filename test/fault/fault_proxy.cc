#include "test/fault/fault_proxy.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <span>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

namespace psd::testing {
namespace {

constexpr uint32_t kSegmentsMost = 512;
constexpr uint64_t kMessageBytesMost = 16u << 20;
constexpr int kAcceptPollMs = 20;

void makeBlocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

bool receiveAll(int fd, std::byte* into, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = recv(fd, into, bytes, 0);
    if (got <= 0) return false;
    into += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool sendAll(int fd, std::span<const std::byte> bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t more = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (more <= 0) return false;
    sent += static_cast<size_t>(more);
  }
  return true;
}

uint32_t wordAt(const std::vector<std::byte>& bytes, size_t index) {
  uint32_t word = 0;
  std::memcpy(&word, bytes.data() + index * sizeof word, sizeof word);
  return word;
}

/// Reads one whole message in Cap'n Proto's framing; false at the end of the stream.
bool receiveMessage(int fd, std::vector<std::byte>& message) {
  message.resize(8);
  if (!receiveAll(fd, message.data(), 8)) return false;
  const uint32_t segments = wordAt(message, 0) + 1;
  if (segments == 0 || segments > kSegmentsMost) return false;
  const size_t table = (segments / 2 + 1) * 8;  // count and sizes, padded to words
  message.resize(table);
  if (table > 8 && !receiveAll(fd, message.data() + 8, table - 8)) return false;
  uint64_t body = 0;
  for (uint32_t i = 0; i < segments; i++) body += uint64_t{wordAt(message, i + 1)} * 8;
  if (body > kMessageBytesMost) return false;
  message.resize(table + body);
  return receiveAll(fd, message.data() + table, body);
}

}  // namespace

FaultProxy::FaultProxy(const std::string& upstream, uint64_t seed, uint64_t messagesMost)
    : upstream_(parseAddress(upstream).value()),
      messagesMost_(messagesMost),
      random_(seed),
      listening_(listenOn(parseAddress("tcp://127.0.0.1:0").value()).value()),
      address_(listening_.address().toString()),
      accepting_([this] { acceptAll(); }) {}

FaultProxy::~FaultProxy() {
  ending_ = true;
  silent_ = false;
  silent_.notify_all();
  accepting_.join();
  for (auto& connection : connections_) {
    cut(*connection);
    connection->upwards.join();
    connection->downwards.join();
  }
}

FaultProxy::Plan FaultProxy::draw() {
  Plan plan;
  if (messagesMost_ == 0) return plan;
  plan.fault = static_cast<Fault>(random_.between(1, 5));
  // A duplicated answer could be taken for that of another call, because the library reuses call numbers. TCP
  // duplicates nothing; trainers do repeat calls, so only those are duplicated.
  plan.upwards = random_.oneIn(2) || plan.fault == Fault::repeat;
  plan.after = random_.between(1, messagesMost_);
  plan.delayMs = random_.between(1, 20);
  return plan;
}

void FaultProxy::acceptAll() {
  while (!ending_) {
    pollfd waiting{listening_.sockets().front().get(), POLLIN, 0};
    if (poll(&waiting, 1, kAcceptPollMs) <= 0) continue;
    auto accepted = acceptFrom(waiting.fd);
    if (!accepted.ok() || accepted->fd.get() < 0) continue;
    auto daemon = connectTo(upstream_, std::chrono::seconds(10));
    if (!daemon.ok()) continue;  // closes the trainer's connection
    auto connection = std::make_unique<Connection>();
    connection->trainer = std::move(accepted->fd);
    connection->daemon = std::move(*daemon);
    makeBlocking(connection->trainer.get());
    makeBlocking(connection->daemon.get());
    connection->plan = draw();
    Connection& made = *connection;
    connection->upwards = std::thread([this, &made] { pump(made, true); });
    connection->downwards = std::thread([this, &made] { pump(made, false); });
    std::lock_guard lock(mutex_);
    connections_.push_back(std::move(connection));
  }
}

void FaultProxy::cut(size_t connection) {
  std::lock_guard lock(mutex_);
  harmed_++;
  cut(**std::next(connections_.begin(), static_cast<ptrdiff_t>(connection)));
}

void FaultProxy::cut(Connection& connection) {
  shutdown(connection.trainer.get(), SHUT_RDWR);
  shutdown(connection.daemon.get(), SHUT_RDWR);
}

bool FaultProxy::relay(int to, const std::vector<std::byte>& message, bool upwards) {
  const std::span<const std::byte> bytes(message);
  for (size_t sent = 0; sent < bytes.size();) {
    if (silent_) {
      silent_.wait(true);
      return false;  // permanent
    }
    const size_t most = upwards || pieceBytes_ == 0 ? bytes.size() : pieceBytes_.load();
    const auto piece = bytes.subspan(sent, std::min(most, bytes.size() - sent));
    if (!sendAll(to, piece)) return false;
    sent += piece.size();
    if (sent < bytes.size()) std::this_thread::sleep_for(std::chrono::milliseconds(pauseMs_));
  }
  return true;
}

void FaultProxy::pump(Connection& connection, bool upwards) {
  const int from = upwards ? connection.trainer.get() : connection.daemon.get();
  const int to = upwards ? connection.daemon.get() : connection.trainer.get();
  const Plan& plan = connection.plan;
  std::vector<std::byte> message, held;
  uint64_t holdUntil = 0;  // messages passed before it is released
  for (uint64_t passed = 0; receiveMessage(from, message); passed++) {
    if (upwards && matches_ && holdUntil == 0 && matches_(message)) {
      held.swap(message);
      holdUntil = passed + holdMessages_;
      continue;
    }
    if (!held.empty() && passed == holdUntil) {
      if (!relay(to, held, upwards)) break;
      held.clear();
    }
    const bool now = plan.fault != Fault::none && plan.upwards == upwards && passed == plan.after;
    if (now) harmed_++;
    if (now && plan.fault == Fault::cut) break;
    if (now && plan.fault == Fault::halfClose) {
      shutdown(to, SHUT_WR);
      while (receiveMessage(from, message)) continue;  // discarded
      break;
    }
    // A stream that lost a message is unusable for both sides; they take a while to detect it.
    if (now && plan.fault == Fault::swallow) {
      std::this_thread::sleep_for(std::chrono::milliseconds(plan.delayMs));
      break;
    }
    if (now && plan.fault == Fault::delay) {
      std::this_thread::sleep_for(std::chrono::milliseconds(plan.delayMs));
    }
    if (!relay(to, message, upwards)) break;
    if (now && plan.fault == Fault::repeat && !relay(to, message, upwards)) break;
  }
  cut(connection);
}

}  // namespace psd::testing

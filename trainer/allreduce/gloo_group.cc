#include "trainer/allreduce/gloo_group.h"

#include <exception>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/headeronly/version.h>

// The PyPI wheel contains gloo in libtorch_cpu.so but not its headers; gloo_stub replaces them for this
// version.
static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11,
              "check that gloo_stub still matches torch/csrc/distributed/c10d/ProcessGroupGloo.hpp");

namespace psd {
namespace {

constexpr std::chrono::milliseconds kStoreTimeout{10'000};

/// The first line of a c10d exception; the rest is a stack trace.
Error failed(const std::string& what, const std::exception& exception) {
  const std::string text = exception.what();
  return {ErrorCode::unavailable, what + ": " + text.substr(0, text.find('\n'))};
}

/// Wraps an array as a tensor for c10d, without a copy.
template <class T>
at::Tensor tensorOf(std::span<T> array) {
  const auto type = std::is_same_v<T, float> ? at::kFloat : at::kLong;
  return at::from_blob(array.data(), {static_cast<int64_t>(array.size())}, at::TensorOptions().dtype(type));
}

/// An averaging group on gloo. Owned by one thread.
class GlooGroup final : public Collective {
 public:
  GlooGroup(c10::intrusive_ptr<c10d::ProcessGroupGloo> group) : group_(std::move(group)) {}

  Status sum(const std::vector<std::span<float>>& arrays) override {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    Status status;
    // Waits for all operations even after an error: they use the caller's arrays.
    const auto attempt = [&](auto call) {
      try {
        call();
      } catch (const std::exception& exception) {
        if (status.ok()) status = failed("averaging gradients", exception);
      }
    };
    for (const std::span<float> array : arrays) {
      attempt([&] {
        std::vector<at::Tensor> tensors{tensorOf(array)};
        works.push_back(group_->allreduce(tensors));
      });
    }
    for (const auto& work : works) attempt([&] { work->wait(); });
    return status;
  }
  Status broadcastFromFirst(std::span<uint64_t> words) override { return broadcast(words); }
  Status broadcastFromFirst(std::span<float> values) override { return broadcast(values); }

 private:
  template <class T>
  Status broadcast(std::span<T> values) {
    try {
      std::vector<at::Tensor> tensors{tensorOf(values)};
      group_->broadcast(tensors)->wait();
      return {};
    } catch (const std::exception& exception) {
      return failed("broadcasting parameters", exception);
    }
  }

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

/// Creates gloo groups, with a rendezvous store at a port of this trainer. Owned by one thread.
class GlooGroups final : public CollectiveMaker {
 public:
  explicit GlooGroups(std::string host) : host_(std::move(host)) {}

  Result<AveragingMember> where() override {
    try {
      if (!store_) {
        c10d::TCPStoreOptions options;
        options.port = 0;
        options.isServer = true;
        options.waitWorkers = false;
        options.timeout = kStoreTimeout;
        store_ = c10::make_intrusive<c10d::TCPStore>(host_, options);
      }
      return AveragingMember{{}, host_, store_->getPort()};
    } catch (const std::exception& exception) {
      return failed("opening the rendezvous port on host '" + host_ + "'", exception);
    }
  }

  Result<std::unique_ptr<Collective>> make(const FormedGroup& group,
                                           std::chrono::milliseconds timeout) override {
    const AveragingMember& first = group.members.front();
    try {
      c10::intrusive_ptr<c10d::Store> store = store_;
      if (group.index != 0) {
        c10d::TCPStoreOptions options;
        options.port = first.port;
        options.waitWorkers = false;
        options.timeout = timeout;
        store = c10::make_intrusive<c10d::TCPStore>(first.host, options);
      }
      store->setTimeout(timeout);
      auto options = c10d::ProcessGroupGloo::Options::create(timeout);
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(host_));
      options->threads = 1;
      auto prefixed = c10::make_intrusive<c10d::PrefixStore>(std::to_string(group.generation), store);
      return std::unique_ptr<Collective>(
          std::make_unique<GlooGroup>(c10::make_intrusive<c10d::ProcessGroupGloo>(
              prefixed, static_cast<int>(group.index), static_cast<int>(group.members.size()), options)));
    } catch (const std::exception& exception) {
      return failed("a group of " + std::to_string(group.members.size()) + " trainers at " + first.host +
                        ":" + std::to_string(first.port),
                    exception);
    }
  }

 private:
  const std::string host_;
  c10::intrusive_ptr<c10d::TCPStore> store_;  // created by where()
};

}  // namespace

Result<std::unique_ptr<CollectiveMaker>> makeGlooGroups(const std::string& host) {
  const std::string name = host.empty() ? "127.0.0.1" : host;
  try {
    (void)c10d::ProcessGroupGloo::createDeviceForHostname(name);  // throws unless it is a local address
  } catch (const std::exception&) {
    return Error{ErrorCode::invalidArgument, "'" + name + "' is not a host name or address of this machine"};
  }
  return std::unique_ptr<CollectiveMaker>(std::make_unique<GlooGroups>(name));
}

}  // namespace psd

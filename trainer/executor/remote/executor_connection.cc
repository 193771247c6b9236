#include "trainer/executor/remote/executor_connection.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <kj/async-io.h>

#include "common/os/address.h"
#include "common/os/socket.h"
#include "common/text/quantity.h"
#include "common/text/text.h"
#include "common/tls/connect.h"
#include "common/tls/refusal.h"
#include "common/wire/client_rpc.h"
#include "common/wire/convert.h"
#include "trainer/client/attempts.h"
#include "trainer/client/io_thread.h"
#include "trainer/client/transport/slice_queue.h"
#include "trainer/executor/remote/tensor_wire.h"

namespace psd {
namespace {

constexpr uint64_t kMessageBytesMax = 260u << 20;  // of an answer: the executor's upper limit plus a margin
constexpr uint64_t kEnvelopeBytes = 64u << 10;     // of a message, excluding its tensors
constexpr uint64_t kHeartbeatsPerTimeout = 4;

/// The number of parts of a batch that are in flight at once: enough to keep stages and workers busy, but a
/// small share of the calls that all trainers together may have.
uint32_t partsInFlight(const RemoteModule& module) {
  constexpr uint32_t kMost = 16, kShareOfQueue = 4;
  return std::clamp<uint32_t>(module.queue / kShareOfQueue, 1, kMost);
}

kj::Promise<Result<ForwardResult>> sendForward(schema::RemoteTrainer::Client& trainer, uint64_t context,
                                               const std::vector<NamedTensor>& inputs, bool training,
                                               int8_t priority) {
  auto request = trainer.forwardRequest();
  request.setContext(context);
  wire::writeTensors(inputs, request.initInputs(static_cast<uint32_t>(inputs.size())));
  request.setTraining(training);
  request.setPriority(priority);
  return request.send().then([](auto answer) -> Result<ForwardResult> {
    PSD_RETURN_IF_ERROR(wire::readStatus(answer.getStatus()));
    ForwardResult result;
    PSD_ASSIGN_OR_RETURN(result.outputs, wire::readTensors(answer.getOutputs()));
    for (const uint64_t version : answer.getVersions()) result.versions.push_back(Version{version});
    return result;
  });
}

template <class Answer>
Result<StepResult> readStepResult(Answer& answer) {
  PSD_RETURN_IF_ERROR(wire::readStatus(answer.getStatus()));
  if (answer.getOutcome() > schema::PushOutcome::LATE) {
    return Error{ErrorCode::protocolMismatch,
                 "the executor reports an outcome that is unknown to this version"};
  }
  return StepResult{static_cast<PushOutcome>(answer.getOutcome()), answer.getStaleness()};
}

kj::Promise<Result<StepResult>> sendBackward(schema::RemoteTrainer::Client& trainer, uint64_t context,
                                             const std::vector<NamedTensor>& outputGradients, Step step,
                                             uint32_t samples, int8_t priority) {
  auto request = trainer.backwardRequest();
  request.setContext(context);
  wire::writeTensors(outputGradients,
                     request.initOutputGradients(static_cast<uint32_t>(outputGradients.size())));
  request.setThenStep(step.value);
  request.setSamples(samples);
  request.setPriority(priority);
  return request.send().then([](auto answer) { return readStepResult(answer); });
}

}  // namespace

Status checkParts(const RemoteModule& module, uint64_t parts) {
  const auto cannot = [&](const std::string& why) {
    return Status(ErrorCode::invalidArgument,
                  fmt::format("a batch cannot be divided into {} parts at the executor of '{}': {}", parts,
                              module.name, why));
  };
  if (parts <= 1) return {};
  if (module.tables) return cannot("a module with embedding tables steps from one context");
  if (module.exclusive) return cannot("with `exclusive` a trainer has one context at a time");
  if (parts <= module.contexts) return {};
  return cannot(fmt::format("its `contexts` allows a trainer {}", module.contexts));
}

/// The connection's state on the background thread. Constructed and called by the trainer's thread.
class ExecutorConnection::Wire {
 public:
  explicit Wire(std::string executor) : executor_(std::move(executor)) {}
  ~Wire() {
    io_.runSync([this](kj::AsyncIoContext&) { tearDown(); });
  }

  const std::string& executor() const { return executor_; }
  const RemoteModule& module() const { return module_; }
  /// Checks that the executor accepts a message with these tensors; a larger one would end the connection.
  Status fits(const std::vector<NamedTensor>& tensors) const {
    const uint64_t bytes = totalBytes(tensors);
    if (bytes + kEnvelopeBytes <= messageBytes_ && tensors.size() <= wire::kTensorListMax) return {};
    return {ErrorCode::invalidArgument,
            fmt::format("{} in {} tensor(s) for the executor {}; its message_bytes ({}) allows {} in {}: "
                        "send fewer samples, or raise it",
                        bytesText(bytes), tensors.size(), executor_, bytesText(messageBytes_),
                        bytesText(messageBytes_ - std::min(messageBytes_, kEnvelopeBytes)),
                        wire::kTensorListMax)};
  }

  Status open(OwnFd fd, const Address& address, std::chrono::milliseconds timeout, const std::string& program,
              const TlsFiles& tls);

  /// Runs `work()` on the background thread and waits for its promise of a Result or Status.
  template <class Answer, class Work>
  Answer call(Work work) {
    return io_.runSync([&](kj::AsyncIoContext&) -> kj::Promise<Answer> {
      if (ended_) return Answer(*ended_);
      return canceler_.wrap(kj::evalNow(work)).catch_([this](kj::Exception&& exception) {
        end({ErrorCode::unavailable, fmt::format("the connection to the executor {} broke: {}", executor_,
                                                 printable(wire::textIn(exception.getDescription())))});
        return Answer(*ended_);
      });
    });
  }
  /// Ends the call in progress and all later ones. From any thread.
  void interrupt() {
    io_.post([this] {
      // Best effort, so that the daemon receives a goodbye; the answer is not awaited.
      KJ_IF_MAYBE (trainer, trainer_) {
        if (!ended_)
          leaving_ = trainer->leaveRequest().send().ignoreResult().eagerlyEvaluate([](kj::Exception&&) {});
      }
      end({ErrorCode::interrupted, "the trainer was interrupted"});
    });
  }

  /// Runs `work(session)` on the background thread, with the session from join(), and waits for its promise.
  template <class Answer, class Work>
  Answer callTrainer(Work work) {
    return call<Answer>([&]() -> kj::Promise<Answer> {
      KJ_IF_MAYBE (trainer, trainer_) return work(*trainer);
      return Answer(Error{ErrorCode::notReady, "a call before join()"});
    });
  }

  schema::Executor::Client& server() { return KJ_ASSERT_NONNULL(server_); }
  void setTrainer(schema::RemoteTrainer::Client trainer) { trainer_ = kj::mv(trainer); }

 private:
  kj::Promise<Status> greet(kj::AsyncIoContext& io, wire::Socket socket, const std::string& program);
  kj::Promise<Status> sayHello(const std::string& program);
  /// Sends heartbeats, and ends all calls when nothing was received for `silence_`.
  kj::Promise<void> watch(kj::Timer& timer);
  void sendHeartbeat();
  void end(Error why) {
    if (ended_) return;
    ended_ = std::move(why);
    canceler_.cancel("the connection has ended");
  }
  void tearDown() {
    end({ErrorCode::interrupted, "the connection was closed"});
    watching_ = nullptr;
    heartbeat_ = nullptr;
    leaving_ = nullptr;
    trainer_ = nullptr;
    server_ = nullptr;
    rpc_ = nullptr;
  }

  const std::string executor_;
  RemoteModule module_;
  std::chrono::milliseconds silence_{10'000};
  uint64_t messageBytes_ = kMessageBytesMax;
  IoThread io_;
  // The members below belong to the background thread.
  kj::Canceler canceler_;
  std::optional<Error> ended_;
  kj::Maybe<wire::ClientRpc> rpc_;
  kj::Maybe<schema::Executor::Client> server_;
  kj::Maybe<schema::RemoteTrainer::Client> trainer_;
  uint64_t lastReceivedBytes_ =
      UINT64_MAX;                // received by the last heartbeat; the initial value never matches
  uint64_t idleHeartbeats_ = 0;  // consecutive heartbeats without any received byte
  kj::Promise<void> watching_ = nullptr, heartbeat_ = nullptr, leaving_ = nullptr;
};

kj::Promise<Status> ExecutorConnection::Wire::greet(kj::AsyncIoContext& io, wire::Socket socket,
                                                    const std::string& program) {
  wire::MessageStreamOptions options;
  options.messageBytesMax = kMessageBytesMax;
  server_ = rpc_.emplace(kj::mv(socket), io.provider->getTimer(), std::move(options), 0,
                         wire::readerOptions(kMessageBytesMax))
                .bootstrap()
                .castAs<schema::Executor>();
  return sayHello(program);
}

Status ExecutorConnection::Wire::open(OwnFd fd, const Address& address, std::chrono::milliseconds timeout,
                                      const std::string& program, const TlsFiles& tls) {
  const auto begin = [&](kj::AsyncIoContext& io) {
    // evalNow() also turns an exception of the first write into a rejected promise.
    auto greeted = kj::evalNow([&] {
                     return streamOver(io, std::move(fd), address, tls);
                   }).then([this, &io, &program](Result<wire::Socket> socket) -> kj::Promise<Status> {
      if (!socket.ok()) return Status(socket.error());
      return greet(io, *kj::mv(socket), program);
    });
    return io.provider->getTimer()
        .timeoutAfter(timeout.count() * kj::MILLISECONDS, kj::mv(greeted))
        .catch_([this](kj::Exception&& exception) {
          const bool late = exception.getType() == kj::Exception::Type::OVERLOADED;
          const std::string_view description = wire::textIn(exception.getDescription());
          if (isTlsRefusal(description)) {
            return Status(ErrorCode::unauthenticated, executor_ + ": " + printable(description));
          }
          if (exception.getType() == kj::Exception::Type::UNIMPLEMENTED) {
            return Status(ErrorCode::protocolMismatch,
                          executor_ + ": the peer is not a psd-executor; is it a daemon?");
          }
          if (exception.getType() == kj::Exception::Type::DISCONNECTED) {
            return Status(ErrorCode::unavailable,
                          executor_ +
                              ": it closed the connection at once; its log has the reason, such as the "
                              "limit `connections`");
          }
          return Status(
              ErrorCode::unavailable,
              fmt::format("{}: {}", executor_,
                          late ? "no answer in time" : printable(wire::textIn(exception.getDescription()))));
        });
  };
  PSD_RETURN_IF_ERROR(io_.runSync(begin));
  io_.runSync([this](kj::AsyncIoContext& io) {
    watching_ = watch(io.provider->getTimer()).eagerlyEvaluate([](kj::Exception&&) {});
  });
  return {};
}

kj::Promise<Status> ExecutorConnection::Wire::sayHello(const std::string& program) {
  auto request = server().helloRequest();
  request.setProtocolVersion(schema::EXECUTOR_PROTOCOL_VERSION);
  request.setPeer(program.c_str());
  return request.send().then([this](auto answer) -> Status {
    PSD_RETURN_IF_ERROR(wire::readStatus(answer.getStatus()));
    module_.name = printable(wire::textIn(answer.getModule()), 80);
    module_.version = printable(wire::textIn(answer.getVersion()), 80);
    PSD_ASSIGN_OR_RETURN(module_.inputs, wire::readColumns(answer.getInputs()));
    PSD_ASSIGN_OR_RETURN(module_.loss, wire::readLoss(answer.getLoss()));
    module_.exclusive = answer.getExclusive();
    module_.contexts = answer.getContexts();
    module_.queue = answer.getQueue();
    module_.tables = answer.getTables();
    if (answer.getMessageBytes() > 0) messageBytes_ = answer.getMessageBytes();
    if (answer.getIdleTimeoutMs() > 0) silence_ = std::chrono::milliseconds(answer.getIdleTimeoutMs());
    return {};
  });
}

kj::Promise<void> ExecutorConnection::Wire::watch(kj::Timer& timer) {
  const kj::Duration interval = silence_.count() * kj::MILLISECONDS / kHeartbeatsPerTimeout;
  return timer.afterDelay(interval).then([this, &timer]() -> kj::Promise<void> {
    // Any received byte counts as a sign of life, since an answer may be queued behind others for long. Idle
    // time is counted in heartbeats, so that time in which this process itself was stopped does not count.
    const uint64_t received = KJ_ASSERT_NONNULL(rpc_).stream().receivedBytes();
    idleHeartbeats_ = received == lastReceivedBytes_ ? idleHeartbeats_ + 1 : 0;
    lastReceivedBytes_ = received;
    if (idleHeartbeats_ == kHeartbeatsPerTimeout) {
      end({ErrorCode::unavailable,
           fmt::format("received nothing from the executor {} for {}", executor_, durationText(silence_))});
      return kj::READY_NOW;
    }
    sendHeartbeat();
    return watch(timer);
  });
}

void ExecutorConnection::Wire::sendHeartbeat() {
  heartbeat_ = server().keepAliveRequest().send().ignoreResult().eagerlyEvaluate([this](kj::Exception&&) {
    end({ErrorCode::unavailable, fmt::format("the connection to the executor {} broke", executor_)});
  });
}

ExecutorConnection::ExecutorConnection(std::unique_ptr<Wire> wire) : wire_(std::move(wire)) {}
ExecutorConnection::~ExecutorConnection() = default;

const RemoteModule& ExecutorConnection::module() const { return wire_->module(); }

Result<std::unique_ptr<ExecutorConnection>> ExecutorConnection::connect(const std::string& executor,
                                                                        std::chrono::milliseconds timeout,
                                                                        const std::string& program,
                                                                        const TlsFiles& tls) {
  PSD_ASSIGN_OR_RETURN(const Address address, parseAddress(executor));
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  PSD_ASSIGN_OR_RETURN(OwnFd fd, connectTo(address, timeout));
  std::unique_ptr<Wire> wire;
  try {
    wire = std::make_unique<Wire>(executor);
  } catch (const std::runtime_error& error) {
    return Error{ErrorCode::overloaded, std::string("no thread for input and output: ") + error.what()};
  }
  PSD_RETURN_IF_ERROR(wire->open(std::move(fd), address, timeUntil(deadline), program, tls));
  return std::unique_ptr<ExecutorConnection>(new ExecutorConnection(std::move(wire)));
}

Result<RemoteJoin> ExecutorConnection::join(const Membership& membership, uint64_t incarnation,
                                            const std::vector<uint64_t>& rowsAt) {
  return wire_->call<Result<RemoteJoin>>([&] {
    auto request = wire_->server().joinRequest();
    request.setRank(membership.rank.value);
    request.setAnyRank(membership.anyRank);
    request.setWorldSize(membership.worldSize);
    request.setIncarnation(incarnation);
    request.setRowsAt({rowsAt.data(), rowsAt.size()});
    return request.send().then([this](auto answer) -> Result<RemoteJoin> {
      PSD_RETURN_IF_ERROR(wire::readStatus(answer.getStatus()));
      wire_->setTrainer(answer.getTrainer());
      PSD_ASSIGN_OR_RETURN(auto daemons, wire::readDaemonNumbers(answer.getDaemons()));
      return RemoteJoin{Rank{answer.getRank()},
                        answer.getWorldSize(),
                        printable(wire::textIn(answer.getPolicy())),
                        printable(wire::textIn(answer.getDevice())),
                        answer.getShards(),
                        std::move(daemons)};
    });
  });
}

Result<ForwardResult> ExecutorConnection::forward(uint64_t context, const std::vector<NamedTensor>& inputs,
                                                  bool training, int8_t priority) {
  PSD_RETURN_IF_ERROR(wire_->fits(inputs));
  return wire_->callTrainer<Result<ForwardResult>>([&](schema::RemoteTrainer::Client& trainer) {
    return sendForward(trainer, context, inputs, training, priority);
  });
}

Status ExecutorConnection::backward(uint64_t context, const std::vector<NamedTensor>& outputGradients,
                                    int8_t priority) {
  return backwardAndStep(context, outputGradients, Step{0}, 0, priority).status();
}

Result<StepResult> ExecutorConnection::backwardAndStep(uint64_t context,
                                                       const std::vector<NamedTensor>& outputGradients,
                                                       Step step, uint32_t samples, int8_t priority) {
  PSD_RETURN_IF_ERROR(wire_->fits(outputGradients));
  return wire_->callTrainer<Result<StepResult>>([&](schema::RemoteTrainer::Client& trainer) {
    return sendBackward(trainer, context, outputGradients, step, samples, priority);
  });
}

Result<double> ExecutorConnection::trainParts(uint64_t first, const std::vector<BatchPart>& parts) {
  for (const BatchPart& part : parts) PSD_RETURN_IF_ERROR(wire_->fits(part.inputs));
  return wire_->callTrainer<Result<double>>([&](schema::RemoteTrainer::Client& trainer) {
    auto losses = kj::heap<std::vector<double>>(parts.size());
    const auto train = [this, first, &parts, &trainer, &losses = *losses](size_t i) {
      const uint64_t context = first + i;
      return sendForward(trainer, context, parts[i].inputs, true, 0)
          .then([this, &trainer, context, &part = parts[i],
                 &loss = losses[i]](Result<ForwardResult> done) -> kj::Promise<Status> {
            if (!done.ok()) return done.status();
            const auto computed = part.loss(done->outputs);
            if (!computed.ok()) return computed.status();
            if (Status fits = wire_->fits(computed->gradients); !fits.ok()) return fits;
            loss = computed->loss;
            return sendBackward(trainer, context, computed->gradients, Step{0}, 0, 0)
                .then([](const Result<StepResult>& passed) { return passed.status(); });
          });
    };
    return sendInWindow(parts.size(), partsInFlight(module()), train)
        .then([losses = kj::mv(losses)](Status status) -> Result<double> {
          if (!status.ok()) return status.error();
          return std::accumulate(losses->begin(), losses->end(), 0.0);
        });
  });
}

Result<std::vector<NamedTensor>> ExecutorConnection::gradients(uint64_t context,
                                                               const std::vector<std::string>& names) {
  using Answer = Result<std::vector<NamedTensor>>;
  return wire_->callTrainer<Answer>([&](schema::RemoteTrainer::Client& trainer) {
    auto request = trainer.gradientsRequest();
    request.setContext(context);
    auto list = request.initNames(static_cast<uint32_t>(names.size()));
    for (uint32_t i = 0; i < list.size(); i++) list.set(i, names[i].c_str());
    return request.send().then([](auto answer) -> Answer {
      PSD_RETURN_IF_ERROR(wire::readStatus(answer.getStatus()));
      return wire::readTensors(answer.getGradients());
    });
  });
}

Result<StepResult> ExecutorConnection::step(uint64_t context, Step step, uint32_t samples,
                                            const std::vector<uint64_t>& also) {
  using Answer = Result<StepResult>;
  return wire_->callTrainer<Answer>([&](schema::RemoteTrainer::Client& trainer) {
    auto request = trainer.stepRequest();
    request.setContext(context);
    request.setStep(step.value);
    request.setSamples(samples);
    request.setAlso({also.data(), also.size()});
    return request.send().then([](auto answer) -> Answer { return readStepResult(answer); });
  });
}

Status ExecutorConnection::drop(uint64_t context) {
  return wire_->callTrainer<Status>([&](schema::RemoteTrainer::Client& trainer) {
    auto request = trainer.dropRequest();
    request.setContext(context);
    return request.send().then([](auto answer) { return wire::readStatus(answer.getStatus()); });
  });
}

Status ExecutorConnection::leave() {
  return wire_->callTrainer<Status>([&](schema::RemoteTrainer::Client& trainer) {
    return trainer.leaveRequest().send().then(
        [](auto answer) { return wire::readStatus(answer.getStatus()); });
  });
}

Result<std::string> ExecutorConnection::status() {
  return wire_->call<Result<std::string>>([&] {
    return wire_->server().statusRequest().send().then([](auto answer) -> Result<std::string> {
      PSD_RETURN_IF_ERROR(wire::readStatus(answer.getStatus()));
      return std::string(wire::textIn(answer.getJson()));
    });
  });
}

void ExecutorConnection::interrupt() { wire_->interrupt(); }

}  // namespace psd

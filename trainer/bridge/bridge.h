#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/bridge/bridge_state.h"
#include "trainer/client/api/client.h"

namespace psd {

struct BridgeOptions {
  ClientOptions local, root;                       ///< connections to this machine's daemon and to the root
  Membership membership;                           ///< at the root
  std::string folder;                              ///< of the state file
  std::chrono::milliseconds retryTimeout{60'000};  ///< retry limit while a daemon is unreachable
};

/// A completed exchange.
struct BridgeExchange {
  Version round;           ///< version of the root's first shard for `common`
  uint64_t updates = 0;    ///< this machine's updates pushed with it; 0: it only pulled from the root
  uint64_t meanwhile = 0;  ///< this machine's updates during the exchange
  uint64_t counted = 0;    ///< version of this machine's first shard; later updates are not in `common`
  double seconds = 0;
  std::span<const float> common;  ///< this machine's parameters without its updates since
};

/// Averages the parameters of a machine's daemon with those of other machines through a daemon shared by all
/// of them, the root, whose policy has local steps. To the root the bridge is a trainer, whose local steps
/// are the updates of the machine's trainers. Every `period` updates it takes a snapshot S of the machine,
/// pushes B − S, where B are the parameters common to both sides, pulls the root's new parameters B', and
/// subtracts S − B' from the machine. Updates since the snapshot are kept: the machine then has B' plus
/// these.
///
/// Each of the two changes has a number and is durable before it is made. After a fault the bridge repeats
/// it, and a daemon that already has it ignores it. So recovery is the same for every fault, of either daemon
/// and of this process: join both again and resume from the state.
///
/// Owned by one thread.
class Bridge {
 public:
  /// Client::connect, or a fake in tests.
  using Connect = std::function<Result<std::unique_ptr<Client>>(const ClientOptions&)>;

  /// `env` outlives the bridge. `tell`: called with each exchange on the thread of run(); may be null.
  Bridge(BridgeOptions options, Connect connect, Env& env, std::function<void(const BridgeExchange&)> tell);

  /// Exchanges until `stop` becomes true or the run of the machine's daemon is over. At the end of a run, the
  /// machine's last updates are exchanged; after `stop`, updates since the last exchange remain for the next
  /// bridge.
  Status run(const std::atomic<bool>& stop);

 private:
  using Clock = std::chrono::steady_clock;
  using Phase = BridgeState::Phase;

  Status openState();
  /// Joins the machine's daemon and, while trainers of the machine are joined, the root, and exchanges. Ok:
  /// stopped, or the run is over.
  Status serve();
  /// Reads the model and, for a fresh state, the current values, from the root or else from this machine.
  Status readModel();
  Result<bool> readModelFrom(ClientOptions options);
  Status checkModel();
  /// Initializes a fresh state with the values from readModel() as those common to both sides.
  Status initializeState();
  Status joinRoot();
  Status joinLocal();
  using Join = std::function<Result<JoinInfo>(Client&)>;
  /// Connects and joins; with a standby, the daemon that is the primary.
  Result<std::unique_ptr<Client>> joined(ClientOptions options, JoinInfo& info, const Join& join) const;
  /// Repeats the interrupted change, and brings the machine up to date with the root.
  Status recover();
  /// Sets the machine to the root's parameters after its daemon lost updates.
  Status resetToRoot();
  /// Applies the root's changes since the last exchange to the machine.
  Status catchUp();
  /// Waits until there is, or soon will be, something to exchange. False: stopped, or the run is over.
  Result<bool> awaitTrainers();
  /// Exchanges until the machine's trainers have departed and their last updates are exchanged; the root then
  /// no longer waits for this machine.
  Status exchangeLoop();
  /// Whether the round is about to close, or has closed, without this machine.
  bool roundCloses();
  Status exchange();
  /// Pushes the difference of the snapshot, and computes from the result the difference for the machine.
  Status push();
  Status add(uint64_t updates);
  /// An error of the machine's daemon with human-readable context; notes whether its run is over.
  Error atLocal(const Error& error);
  Result<MachineProgress> progress();
  /// Number of the machine's updates, at these versions, that are not exchanged.
  uint64_t updatesIn(const std::vector<Version>& versions) const;
  /// Takes a snapshot of the machine that contains durable updates only: after a crash of the daemon, its
  /// trainers would push other updates again.
  Result<PullInfo> snapshot(std::vector<float>& into);
  /// Sleeps; ErrorCode::interrupted if stopped.
  Status sleepFor(std::chrono::milliseconds most) const;
  Result<PullInfo> pull(Client& from, std::vector<float>& into);
  /// Waits for the result of a call; ErrorCode::interrupted if stopped meanwhile.
  template <class Info>
  Result<Info> waitOrStop(Pending<Info> call) const;
  bool elastic() const { return rootInfo_.local.alpha > 0; }
  void disconnect();

  BridgeOptions options_;
  const Connect connect_;
  Env& env_;
  const std::function<void(const BridgeExchange&)> tell_;
  const std::atomic<bool>* stop_ = nullptr;
  std::optional<BridgeFile> file_;
  BridgeState state_;
  ModelSpec model_;
  std::vector<float> first_;  // initial values, for a fresh state
  bool firstFromRoot_ = false;
  std::vector<float> working_;  // as state_ and first_, outlives the clients, which read and write it
  std::unique_ptr<Client> local_, root_;
  JoinInfo localInfo_, rootInfo_;
  std::optional<Pending<RoundDue>> due_;
  bool localShutsDown_ = false;     // the newest error: the machine's daemon shuts down
  Clock::time_point lastProgress_;  // time of the last progress
  Clock::time_point began_;         // start of the exchange
};

}  // namespace psd

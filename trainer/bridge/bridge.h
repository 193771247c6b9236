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
#include "trainer/client/client.h"

namespace psd {

struct BridgeOptions {
  ClientOptions local, root;  ///< how to reach this machine's daemon, and the one that averages
  Membership membership;      ///< at the root
  std::string folder;         ///< of the state
  std::chrono::milliseconds retryTimeout{60'000};  ///< how long to try while a daemon is away
};

/// One exchange, over.
struct BridgeExchange {
  Version round;           ///< of the root's first shard, at which the common parameters are
  uint64_t updates = 0;    ///< of this machine that went into it; 0: it brought others' alone
  uint64_t meanwhile = 0;  ///< of this machine that came while it was under way
  uint64_t counted = 0;    ///< version of this machine's first shard: what came above it is not in `common`
  double seconds = 0;
  std::span<const float> common;  ///< the parameters that this machine has but for its updates since
};

/// Has the parameters of a machine's daemon averaged with those of other machines, by a daemon that all of
/// them have in common, the root, whose policy is one of local steps. To the root it is a trainer that takes
/// steps by itself: these are the updates of the machine's trainers. Every `period` of them it takes a
/// snapshot S of the machine, pushes B − S for the parameters B that both sides had in common, pulls what the
/// root has come to, B', and subtracts S − B' from the machine. Updates that came since the snapshot stay, so
/// the machine is B' and these.
///
/// Each of the two changes has a number, and is on the disk before it is made: who goes on after a fault
/// makes it again, and the daemon that knows it passes it over. So there is one way back from every fault, of
/// either daemon and of this program: join both anew and go on with the state.
///
/// Owned by one thread.
class Bridge {
 public:
  /// Client::connect, or what stands in for it in a test.
  using Connect = std::function<Result<std::unique_ptr<Client>>(const ClientOptions&)>;

  /// `env` outlives it. `tell`: of exchanges, on the thread of run(); null: nobody.
  Bridge(BridgeOptions options, Connect connect, Env& env, std::function<void(const BridgeExchange&)> tell);

  /// Exchanges until `stop` becomes true, or the run of the machine's daemon is over. What the machine has
  /// trained since the last exchange waits for the next bridge, but at the end of a run, when it is
  /// exchanged.
  Status run(const std::atomic<bool>& stop);

 private:
  using Clock = std::chrono::steady_clock;
  using Phase = BridgeState::Phase;

  Status openState();
  /// Joins the machine's daemon and, while trainers of the machine are in, the root, and exchanges. Success:
  /// told to stop, or the run is over.
  Status serve();
  /// Finds out which model it is, and of a fresh state which values the root, or else this machine, has.
  Status learn();
  Result<bool> learnFrom(ClientOptions options);
  Status checkModel();
  /// Begins with the values that learn() found as those that both sides have in common.
  Status adopt();
  Status joinRoot();
  Status joinLocal();
  using Join = std::function<Result<JoinInfo>(Client&)>;
  /// Connects and joins; of a pair of daemons the one that serves.
  Result<std::unique_ptr<Client>> joined(ClientOptions options, JoinInfo& info, const Join& join) const;
  /// Makes again what was under way, and sees to it that the machine has what the root has.
  Status recover();
  /// Sets the machine to the root's parameters, where its daemon has lost updates.
  Status beginAnew();
  /// Brings the machine what the root has come to without it.
  Status catchUp();
  /// Waits until there is something to exchange, or will be. False: told to stop, or the run is over.
  Result<bool> awaitTrainers();
  /// Until the machine's trainers are gone, and with them what they did last; then nobody is to wait for it.
  Status exchangeOnAndOn();
  /// The round is about to close, or has closed, without this machine.
  bool roundCloses();
  Status exchange();
  /// Pushes the snapshot's difference, and from what came of it makes the one that the machine is to get.
  Status push();
  Status add(uint64_t updates);
  /// An error of the machine's daemon, for people; notes whether it ends its run.
  Error atLocal(const Error& error);
  Result<MachineProgress> progress();
  /// How many updates of the machine, at these versions, are not exchanged.
  uint64_t updatesIn(const std::vector<Version>& versions) const;
  /// A snapshot of the machine, of updates alone that its daemon cannot lose: what it showed of others would
  /// be pushed by their trainers anew.
  Result<PullInfo> snapshot(std::vector<float>& into);
  /// Sleeps; ErrorCode::interrupted when told to stop.
  Status rest(std::chrono::milliseconds most) const;
  Result<PullInfo> pull(Client& from, std::vector<float>& into);
  /// What became of a call; ErrorCode::interrupted when told to stop before that is known.
  template <class Info>
  Result<Info> outwait(Pending<Info> call) const;
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
  std::vector<float> first_;  // of a fresh state: the values that the machine begins with
  bool firstFromRoot_ = false;
  std::vector<float> working_;  // these four outlive the clients
  std::unique_ptr<Client> local_, root_;
  JoinInfo localInfo_, rootInfo_;
  std::optional<Pending<RoundDue>> due_;
  bool localEnds_ = false;   // the newest error says that the machine's daemon ends its run
  Clock::time_point good_;   // when it last got on
  Clock::time_point began_;  // the exchange
};

}  // namespace psd

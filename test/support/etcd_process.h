#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "server/engine/etcd_options.h"
#include "test/support/temp_dir.h"

namespace psd::testing {

/// Members of an etcd, each a process of its own at ports of this machine that were free. Killed at the end.
/// Owned by one thread.
class EtcdProcess {
 public:
  /// Files in PEM format; with them members are https://, and want a certificate that `ca` has signed.
  struct Tls {
    std::string ca, certificate, key;
  };

  /// Whether the program is there (Debian's etcd-server), of 3.4 or later.
  static bool isInstalled();

  /// Starts them, and does not wait until they answer: whoever asks too early hears that they are away.
  explicit EtcdProcess(size_t members = 1) : EtcdProcess(members, Tls{}) {}
  EtcdProcess(size_t members, const Tls& tls);
  ~EtcdProcess();
  EtcdProcess(const EtcdProcess&) = delete;
  EtcdProcess& operator=(const EtcdProcess&) = delete;

  const std::vector<EtcdMember>& members() const { return members_; }
  /// False where one has ended by itself: another program was quicker at its port.
  bool isRunning() const;
  void signal(size_t member, int signal) const;
  /// Sends SIGKILL and waits for its end.
  void kill(size_t member);
  /// Starts one that was killed, with what is on its disk.
  void restart(size_t member);
  /// What they wrote, for messages.
  std::string log() const;

 private:
  void start(size_t member);

  TempDir folder_;
  const Tls tls_;
  std::vector<EtcdMember> members_;
  std::vector<uint16_t> peerPorts_;
  std::vector<pid_t> processes_;  // 0: killed
};

}  // namespace psd::testing

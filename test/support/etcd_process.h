#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "server/engine/etcd_options.h"
#include "test/support/temp_dir.h"

namespace psd::testing {

/// An etcd cluster whose members are processes on free local ports. Killed by the destructor. Owned by one
/// thread.
class EtcdProcess {
 public:
  /// Files in PEM format. With them members serve https:// and require a certificate signed by `ca`.
  struct Tls {
    std::string ca, certificate, key;
  };

  /// Whether etcd 3.4 or later (Debian's etcd-server) is installed.
  static bool isInstalled();

  /// Starts the members without waiting until they answer: early calls fail as unavailable.
  explicit EtcdProcess(size_t members = 1) : EtcdProcess(members, Tls{}) {}
  EtcdProcess(size_t members, const Tls& tls);
  ~EtcdProcess();
  EtcdProcess(const EtcdProcess&) = delete;
  EtcdProcess& operator=(const EtcdProcess&) = delete;

  const std::vector<EtcdMember>& members() const { return members_; }
  /// False if a member has exited on its own: another program took its port.
  bool isRunning() const;
  void signal(size_t member, int signal) const;
  /// Sends SIGKILL and waits for the exit.
  void kill(size_t member);
  /// Restarts a killed member with what is on its disk.
  void restart(size_t member);
  /// The members' output, for messages.
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

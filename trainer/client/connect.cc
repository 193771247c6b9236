#include "trainer/client/client.h"
#include "trainer/client/partitioned_client.h"
#include "trainer/client/rpc_client.h"

namespace psd {

Result<std::unique_ptr<Client>> Client::connect(const ClientOptions& options) {
  if (options.servers.empty()) return Error{ErrorCode::invalidArgument, "no server address is given"};
  for (const std::string& server : options.servers) PSD_RETURN_IF_ERROR(parseAddress(server).status());
  PSD_ASSIGN_OR_RETURN(auto link, Link::make());
  auto client = std::make_unique<RpcClient>(options, std::move(link));
  PSD_RETURN_IF_ERROR(client->connect(options.connectTimeout));
  if (client->identity().daemons.size() > 1) return PartitionedClient::connect(options, *client);
  return std::unique_ptr<Client>(std::move(client));
}

}  // namespace psd

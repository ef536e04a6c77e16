// Addresses as a command line has them. Nodes listen on loopback or a private network only: neither
// their calls nor their status are for others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace strata::daemon {

struct HostPort {
  std::string host;   // in numbers; of IPv6 without brackets
  uint16_t port = 0;  // 0: any
};

// "127.0.0.1:7101" or "[::1]:7101"; nothing: it is neither.
[[nodiscard]] std::optional<HostPort> parse_host_port(std::string_view text);
// As people are shown it: without the transport's "tcp:".
[[nodiscard]] std::string shown_address(std::string_view address);

// Empty, or what is wrong, as CLI11 wants it.
// To listen on: "unix:/path", or an address and port, with or without "tcp:" before it.
[[nodiscard]] std::string check_listen(const std::string& text);
// That others are told: like the former, with the port itself.
[[nodiscard]] std::string check_advertise(const std::string& text);
// For HTTP.
[[nodiscard]] std::string check_http(const std::string& text);

}  // namespace strata::daemon

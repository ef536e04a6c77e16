#include "daemon/addresses.h"

#include <arpa/inet.h>

#include <charconv>

namespace strata::daemon {
namespace {

constexpr std::string_view kTcp = "tcp:";

// Loopback, or an address of a private network.
bool is_private(const std::string& host) {
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) != 1) return host == "::1";
  const uint32_t address = ntohl(v4.s_addr);
  return address >> 24 == 127 || address >> 24 == 10 || address >> 20 == 0xac1 ||
         address >> 16 == 0xc0a8;
}

}  // namespace

std::optional<HostPort> parse_host_port(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == text.size()) return std::nullopt;
  HostPort out{std::string(text.substr(0, colon)), 0};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + colon + 1, last, out.port);
  if (error != std::errc() || end != last) return std::nullopt;
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, out.host.c_str(), &v4) == 1) return out;
  if (out.host.size() < 2 || out.host.front() != '[' || out.host.back() != ']') return std::nullopt;
  out.host = out.host.substr(1, out.host.size() - 2);
  if (::inet_pton(AF_INET6, out.host.c_str(), &v6) != 1) return std::nullopt;
  return out;
}

std::string shown_address(std::string_view address) {
  return std::string(address.starts_with(kTcp) ? address.substr(kTcp.size()) : address);
}

std::string check_listen(const std::string& text) {
  if (text.starts_with("unix:/")) return {};
  const auto parsed = parse_host_port(shown_address(text));
  if (!parsed.has_value())
    return text + ": must be unix:/path or address:port, in numbers (127.0.0.1:7101)";
  if (!is_private(parsed->host)) return text + ": must be loopback or of a private network";
  return {};
}

std::string check_advertise(const std::string& text) {
  if (text.ends_with(":0")) return text + ": others need the port itself, not any free one";
  return check_listen(text);
}

std::string check_http(const std::string& text) {
  const auto parsed = parse_host_port(text);
  if (!parsed.has_value()) return text + ": must be address:port, in numbers (127.0.0.1:7201)";
  if (!is_private(parsed->host)) return text + ": must be loopback or of a private network";
  return {};
}

}  // namespace strata::daemon

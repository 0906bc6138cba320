//! Log output of `weir`: standard error, or the system's log for processes in the background.

use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// The tracing target of the events for the start and stop of a daemon, which the default filter shows.
pub const DAEMON_EVENTS: &str = "weir::daemon";
/// The default log filter of daemons: warnings, the events for start and stop, and the events of the mgr about iods.
const OF_DAEMONS: &str = "warn,weir::daemon=info,mgr::iods::supervisor=info";
/// The path of the socket at which syslog or the systemd journal receives log messages.
const SYSTEM_LOG: &str = "/dev/log";
/// The syslog facility "daemon" (RFC 5424 §6.2.1).
const FACILITY: u8 = 3;

/// The socket of the system's log. Set once this process sends its log lines to the system's log instead of to standard
/// error.
static SYSTEM: OnceLock<UnixDatagram> = OnceLock::new();

/// Starts logging. `RUST_LOG` sets the filter; without `RUST_LOG`, the number of `-v` options sets the filter.
pub fn start(verbose: u8, daemon: bool) {
    let default = match verbose {
        0 if daemon => OF_DAEMONS,
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::builder().with_default_directive(tracing_subscriber::filter::LevelFilter::WARN.into());
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => filter.parse_lossy(text),
        _ => EnvFilter::new(default),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Sinks)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// Sends all later log lines to the system's log, which is syslog or the journal.
///
/// # Errors
/// The system has no socket for log messages.
pub fn to_system() -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(SYSTEM_LOG)?;
    // Make the socket non-blocking, so that a busy log service never blocks a daemon.
    socket.set_nonblocking(true)?;
    // Ignore the error if an earlier call of `to_system` has set a socket: that socket leads to the same log.
    let _ = SYSTEM.set(socket);
    Ok(())
}

/// A writer for the tracing subscriber, which sends each line to the current log output.
struct Sinks;

/// The destination of one log line.
enum Sink {
    Stderr(io::Stderr),
    System(&'static UnixDatagram, Level),
}

impl<'a> MakeWriter<'a> for Sinks {
    type Writer = Sink;

    fn make_writer(&'a self) -> Sink {
        Sink::to(Level::INFO)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Sink {
        Sink::to(*meta.level())
    }
}

impl Sink {
    fn to(level: Level) -> Sink {
        match SYSTEM.get() {
            Some(system) => Sink::System(system, level),
            None => Sink::Stderr(io::stderr()),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Stderr(stderr) => stderr.write(line),
            Sink::System(system, level) => {
                // Ignore the error if the system's log rejects a message, because no other output can report that the
                // message is lost.
                let _ = system.send(&message(*level, std::process::id(), line));
                Ok(line.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::Stderr(stderr) => stderr.flush(),
            Sink::System(..) => Ok(()),
        }
    }
}

/// Formats a log line for syslog (RFC 3164 §4.1). Omits the time, because syslog adds it.
fn message(level: Level, process: u32, line: &[u8]) -> Vec<u8> {
    let severity = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    let text = line.trim_ascii();
    // Drop the first word of the line, which is the time, because syslog adds the time itself.
    let text = text.iter().position(u8::is_ascii_whitespace).map_or(text, |end| text[end..].trim_ascii_start());
    let mut out = format!("<{}>weir[{process}]: ", FACILITY * 8 + severity).into_bytes();
    out.extend_from_slice(text);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_become_syslog_messages() {
        let line = b"2026-11-26T10:00:55Z  WARN mgr: iod is down\n";
        assert_eq!(message(Level::WARN, 7, line), b"<28>weir[7]: WARN mgr: iod is down");
        assert_eq!(message(Level::ERROR, 7, b"x"), b"<27>weir[7]: x");
        assert_eq!(message(Level::INFO, 7, b""), b"<30>weir[7]: ");
    }
}

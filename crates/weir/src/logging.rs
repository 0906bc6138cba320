//! Log lines on standard error.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging: `RUST_LOG` when set, else by the number of `-v`.
pub fn start(verbose: u8) {
    let default = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = EnvFilter::builder().with_default_directive(tracing_subscriber::filter::LevelFilter::WARN.into());
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => filter.parse_lossy(text),
        _ => EnvFilter::new(default),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

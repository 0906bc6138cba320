//! Capture of panics and log lines of the simulated daemons. A panic makes the run fail, and log lines appear among the
//! printed events.

use crate::trace;
use std::cell::RefCell;
use std::sync::Once;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

thread_local! {
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();
static LOG: Once = Once::new();

/// From now on, collects the messages of this thread's panics instead of printing them.
pub fn begin() {
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let noted = PANICS.with_borrow_mut(|panics| panics.as_mut().map(|panics| panics.push(info.to_string())));
            if noted.is_none() {
                before(info);
            }
        }));
    });
    PANICS.set(Some(Vec::new()));
}

/// Returns the messages of this thread's panics after the call of [`begin`].
pub fn end() -> Vec<String> {
    PANICS.take().unwrap_or_default()
}

struct Simulated;

impl FormatTime for Simulated {
    fn format_time(&self, out: &mut Writer<'_>) -> std::fmt::Result {
        write!(out, "{:>11.3}", trace::elapsed().as_secs_f64())
    }
}

/// Prints the log lines of the daemons, each with the simulated time.
pub fn show_logs() {
    LOG.call_once(|| {
        let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "debug,client=trace".into());
        let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_timer(Simulated).with_ansi(false);
        let log = log.with_env_filter(tracing_subscriber::EnvFilter::new(filter));
        // Ignore the error: if the program has already set up logging, its own logging stays in use.
        let _ = log.try_init();
    });
}

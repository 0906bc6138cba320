//! Log messages about long waits: a request that has waited for two seconds logs which server it waits for.
//!
//! A request to an unreachable server waits up to `retry_timeout`: one minute by default, or without a limit. Without a
//! message, a user would assume that the program hangs.

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a request waits before it logs a message about the wait.
const SAID_AFTER: Duration = Duration::from_secs(2);
/// Minimum time between two log messages about the same server.
const SAID_FOR: Duration = Duration::from_secs(60);

/// Logs long waits of requests for one server, and remembers the time of the last log message.
#[derive(Debug, Default)]
pub(crate) struct LongWaits {
    report: Mutex<Report>,
}

#[derive(Debug, Default)]
struct Report {
    /// The address at which the client last tried to reach the server.
    address: Option<String>,
    /// The time of the last log message about a request that waits for this server.
    said: Option<Instant>,
}

impl LongWaits {
    /// Creates the record of long waits for a server that has a single address.
    pub(crate) fn of(address: &impl ToString) -> Self {
        let waits = LongWaits::default();
        waits.at(address);
        waits
    }

    /// Records the address at which the client tries to reach the server.
    pub(crate) fn at(&self, address: &impl ToString) {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).address = Some(address.to_string());
    }

    /// Waits for `request` and returns its outcome. After two seconds without an outcome, logs a warning that the
    /// request waits for `server`, for at most `patience`.
    pub(crate) async fn watch<F: Future>(
        &self,
        request: F,
        patience: Duration,
        server: impl FnOnce() -> String,
    ) -> F::Output {
        let mut request = pin!(request);
        match tokio::time::timeout(SAID_AFTER, request.as_mut()).await {
            Ok(outcome) => outcome,
            Err(_) => {
                if let Some(address) = self.is_to_say() {
                    let (server, at) = (server(), address.map(|address| format!(" at {address}")).unwrap_or_default());
                    tracing::warn!("waiting for {server}{at}, {}", until(patience));
                }
                request.await
            }
        }
    }

    /// Returns the server address for a log message, or `None` if a request has logged a wait for this server in the
    /// last minute.
    fn is_to_say(&self) -> Option<Option<String>> {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        if report.said.is_some_and(|said| said.elapsed() < SAID_FOR) {
            return None;
        }
        report.said = Some(Instant::now());
        Some(report.address.clone())
    }
}

fn until(patience: Duration) -> String {
    match patience >= crate::options::FOR_EVER {
        true => "trying for ever".to_owned(),
        false => format!("trying for up to {} s", patience.as_secs().max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_of_several_waiting_requests_logs_the_wait() {
        let waits = LongWaits::default();
        waits.at(&"127.0.0.1:7");
        let said = Mutex::new(0);
        let wait = |secs| {
            waits.watch(tokio::time::sleep(Duration::from_secs(secs)), Duration::from_secs(60), || {
                *said.lock().unwrap() += 1;
                "iod x".to_owned()
            })
        };
        wait(1).await;
        assert_eq!(*said.lock().unwrap(), 0, "the request was answered in time");
        tokio::join!(wait(5), wait(6));
        assert_eq!(*said.lock().unwrap(), 1);
        wait(61).await;
        wait(3).await;
        assert_eq!(*said.lock().unwrap(), 2, "the last report is too old to cover this wait");
        assert_eq!(until(crate::options::FOR_EVER), "trying for ever");
    }
}

//! Generators of traces from a description and a seed; the same input always gives the same trace.

mod digitisation;
mod postmark;
mod random;
mod sequential;
mod strided;

use crate::{Action, END_MAX, Trace};

/// The description of a trace. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Generator {
    /// Sequential access to one file; each client accesses its own part. A writing client ends with one fsync.
    Sequential {
        /// Length of the file in bytes.
        size: u64,
        /// Length of a request in bytes.
        request: u32,
        /// Number of clients.
        clients: u32,
        /// Whether the clients read instead of write.
        read: bool,
    },
    /// Access to random offsets of one file, each a multiple of the request length. A writing client ends with one
    /// fsync.
    Random {
        /// Length of the file in bytes.
        size: u64,
        /// Length of a request in bytes.
        request: u32,
        /// Number of requests of each client.
        count: u32,
        /// Number of clients.
        clients: u32,
        /// Whether the clients read instead of write.
        read: bool,
    },
    /// Strided writes: the clients write the records of one file in round-robin order. Each client ends with one
    /// fsync.
    Strided {
        /// Length of a record in bytes.
        request: u32,
        /// Number of records of each client.
        count: u32,
        /// Number of clients.
        clients: u32,
    },
    /// Many small files that a client creates, reads, appends to and removes, like a mail server.
    Postmark {
        /// Number of files that exist before the first transaction.
        files: u32,
        /// Number of transactions: each creates or removes a file, and reads a file or appends to one.
        transactions: u32,
        /// Whether an fsync precedes the close of each written file.
        fsync: bool,
    },
    /// The digitisation step of simulated particle-physics experiments: many small requests, and a few large requests
    /// that carry nearly all bytes, at random offsets.
    Digitisation {
        /// Number of simulated events. The client writes 1.3 MB for each event.
        events: u32,
        /// Whether to add fsyncs, about eighteen per event.
        fsync: bool,
    },
}

impl Generator {
    /// Generates the trace from a seed. Refuses descriptions with numbers that are too large for a trace.
    ///
    /// # Errors
    /// Describes what is invalid in the description of the trace.
    pub fn generate(&self, seed: u64) -> Result<Trace, String> {
        let clients = match *self {
            Generator::Sequential { size, request, clients, read } => {
                check(request, clients, size, size.div_ceil(u64::from(request.max(1))))?;
                sequential::generate(size, request, clients, kind(read))
            }
            Generator::Random { size, request, count, clients, read } => {
                check(request, clients, size, u64::from(count) * u64::from(clients))?;
                if size < u64::from(request) {
                    return Err("the file is shorter than a request".to_owned());
                }
                random::generate(seed, size, request, count, clients, kind(read))
            }
            Generator::Strided { request, count, clients } => {
                let records = u64::from(count) * u64::from(clients);
                check(request, clients, records.saturating_mul(u64::from(request)), records)?;
                strided::generate(request, count, clients)
            }
            Generator::Postmark { files, transactions, fsync } => {
                check(1, 1, 0, (u64::from(files) + u64::from(transactions)) * postmark::OPS_EACH)?;
                vec![postmark::generate(seed, files, transactions, fsync)]
            }
            Generator::Digitisation { events, fsync } => {
                check(1, 1, 0, u64::from(events) * digitisation::OPS_EACH)?;
                vec![digitisation::generate(seed, events, fsync)]
            }
        };
        Ok(Trace { clients })
    }
}

fn kind(read: bool) -> Action {
    if read { Action::Read } else { Action::Write }
}

/// Refuses descriptions that exceed the limits of traces or need too much memory.
fn check(request: u32, clients: u32, size: u64, ops: u64) -> Result<(), String> {
    const OPS_MAX: u64 = 1 << 26;
    match () {
        () if request == 0 || request > crate::LEN_MAX => {
            Err(format!("the length of a request is 1 to {} bytes", crate::LEN_MAX))
        }
        () if clients == 0 || clients as usize > crate::CLIENTS_MAX => {
            Err(format!("the number of clients is 1 to {}", crate::CLIENTS_MAX))
        }
        () if size > END_MAX => Err(format!("the size of a file is at most {END_MAX} bytes")),
        () if ops > OPS_MAX => Err(format!("the trace would have more than {OPS_MAX} operations")),
        () => Ok(()),
    }
}

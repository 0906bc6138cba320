//! Traces made from a description and a seed: the same ones always.

mod digitisation;
mod postmark;
mod random;
mod sequential;
mod strided;

use crate::{Action, END_MAX, Trace};

/// A trace to be made. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Generator {
    /// One file from its beginning to its end, each client a part of its own of it, then one fsync if it is written.
    Sequential {
        /// Length of the file.
        size: u64,
        /// Length of a request.
        request: u32,
        /// Clients.
        clients: u32,
        /// Reads instead of writes.
        read: bool,
    },
    /// Requests at random places of one file, each a multiple of its length away from the beginning, then one fsync if
    /// they are writes.
    Random {
        /// Length of the file.
        size: u64,
        /// Length of a request.
        request: u32,
        /// How many.
        count: u32,
        /// Clients, each with as many.
        clients: u32,
        /// Reads instead of writes.
        read: bool,
    },
    /// Clients that write the records of one file in turns, each every n-th, then one fsync each.
    Strided {
        /// Length of a record.
        request: u32,
        /// Records of each client.
        count: u32,
        /// Clients.
        clients: u32,
    },
    /// Many small files: made, read, appended to and removed, as a mail server does.
    Postmark {
        /// Files at the beginning.
        files: u32,
        /// Transactions: a file made or removed, and one read or appended to.
        transactions: u32,
        /// An fsync before each close of a file that was written.
        fsync: bool,
    },
    /// The digitisation of particle physics: few large requests with nearly all bytes, many small ones, at random places.
    Digitisation {
        /// Events, 1.3 MB each.
        events: u32,
        /// Now and then an fsync, eighteen in an event.
        fsync: bool,
    },
}

impl Generator {
    /// The trace. The numbers in the description are bounded, and what is too much is refused with a reason.
    ///
    /// # Errors
    /// What is wrong with the description.
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

/// Refuses what a trace cannot say, and what nobody has the memory for.
fn check(request: u32, clients: u32, size: u64, ops: u64) -> Result<(), String> {
    const OPS_MAX: u64 = 1 << 26;
    match () {
        () if request == 0 || request > crate::LEN_MAX => {
            Err(format!("requests are 1 to {} bytes long", crate::LEN_MAX))
        }
        () if clients == 0 || clients as usize > crate::CLIENTS_MAX => {
            Err(format!("there are 1 to {} clients", crate::CLIENTS_MAX))
        }
        () if size > END_MAX => Err(format!("files end at byte {END_MAX}")),
        () if ops > OPS_MAX => Err(format!("that would be more than {OPS_MAX} operations")),
        () => Ok(()),
    }
}

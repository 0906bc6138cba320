//! The loan state of an object: when the client requests a loan, uses it, gives it up, and requests it again.

/// Number of reads of an object that the client sends to the iod before it requests a loan. A loan costs more than one
/// or two such reads.
const READS_BEFORE_LOAN: u32 = 2;
/// Number of reads that the client sends to the iod before it requests a loan again, after the iod granted no loan or
/// the client gave up a loan.
const READS_BEFORE_RETRY: u32 = 32;

/// The loan state of one object; `L` is the type of a loan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LoanState<L> {
    /// The client has no loan, and requests a loan after this number of further reads.
    Without(u32),
    /// The client has requested a loan and has no reply yet.
    Asking,
    /// The client has this loan of the object.
    Lent(L),
    /// The client never requests a loan of this object again, because the iod lends no files that the client can read.
    Never,
}

/// Where a read of the object gets its bytes, and whether the client also requests a loan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReadFrom<L> {
    /// Read from the file of this loan.
    Loan(L),
    /// Send the read to the iod.
    Iod,
    /// Send the read to the iod, and also request a loan. The caller records the reply with [`LoanState::replied`].
    IodAndAsk,
}

/// The reply to a request for a loan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LoanReply<L> {
    /// The iod granted this loan.
    Granted(L),
    /// The iod granted no loan now, but may grant one later.
    NotNow,
    /// The iod will never grant a loan that the client can use.
    Never,
}

impl<L> Default for LoanState<L> {
    fn default() -> Self {
        LoanState::Without(READS_BEFORE_LOAN)
    }
}

impl<L: Clone + PartialEq> LoanState<L> {
    /// Counts a read of the object, and returns where the read gets its bytes.
    pub(crate) fn read(&mut self) -> ReadFrom<L> {
        match self {
            LoanState::Lent(loan) => ReadFrom::Loan(loan.clone()),
            LoanState::Asking | LoanState::Never => ReadFrom::Iod,
            LoanState::Without(0) => {
                *self = LoanState::Asking;
                ReadFrom::IodAndAsk
            }
            LoanState::Without(left) => {
                *left -= 1;
                ReadFrom::Iod
            }
        }
    }

    /// Records the reply to a request for a loan.
    pub(crate) fn replied(&mut self, reply: LoanReply<L>) {
        *self = match reply {
            LoanReply::Granted(loan) => LoanState::Lent(loan),
            LoanReply::NotNow => LoanState::Without(READS_BEFORE_RETRY),
            LoanReply::Never => LoanState::Never,
        };
    }

    /// Gives up a loan, unless another loan has already replaced it.
    pub(crate) fn give_up(&mut self, loan: &L) {
        if matches!(self, LoanState::Lent(held) if held == loan) {
            *self = LoanState::Without(READS_BEFORE_RETRY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of possible events in a history: a read, three kinds of replies to a request for a loan, the end of
    /// the current loan, and the end of an earlier loan.
    const EVENTS: usize = 6;

    /// Compares the loan state with a simple model after every history of up to six events.
    #[test]
    fn every_short_history_matches_the_model() {
        for length in 1..=6 {
            for number in 0..EVENTS.pow(length) {
                let history: Vec<usize> = (0..length).map(|n| number / EVENTS.pow(n) % EVENTS).collect();
                walk(&history);
            }
        }
    }

    fn walk(history: &[usize]) {
        let mut state = LoanState::<u32>::default();
        // The model: the current loan (`held`), whether a request for a loan is in flight (`asking`), the number of
        // reads until the next request (`left`), whether the iod may still grant a loan (`hope`), and the number of the
        // last granted loan (`next`).
        let (mut held, mut asking, mut left, mut hope, mut next) = (None, false, READS_BEFORE_LOAN, true, 0);
        for event in history {
            match event {
                0 => {
                    let turn = state.read();
                    match held {
                        Some(loan) => assert_eq!(turn, ReadFrom::Loan(loan), "{history:?}"),
                        None if asking || !hope || left > 0 => assert_eq!(turn, ReadFrom::Iod, "{history:?}"),
                        None => {
                            assert_eq!(turn, ReadFrom::IodAndAsk, "{history:?}");
                            asking = true;
                        }
                    }
                    left = left.saturating_sub(u32::from(held.is_none() && !asking));
                }
                // A reply can arrive only while a request for a loan is in flight. So skip all other replies in the
                // history.
                1..=3 if !asking => {}
                1 => {
                    next += 1;
                    state.replied(LoanReply::Granted(next));
                    (held, asking) = (Some(next), false);
                }
                2 => {
                    state.replied(LoanReply::NotNow);
                    (asking, left) = (false, READS_BEFORE_RETRY);
                }
                3 => {
                    state.replied(LoanReply::Never);
                    (asking, hope) = (false, false);
                }
                4 => {
                    let newest = next;
                    state.give_up(&newest);
                    if held == Some(newest) {
                        (held, left) = (None, READS_BEFORE_RETRY);
                    }
                }
                _ => state.give_up(&u32::MAX),
            }
        }
    }

    #[test]
    fn a_refused_loan_is_requested_again_after_some_reads() {
        let mut state = LoanState::<u32>::default();
        for wait in [READS_BEFORE_LOAN, READS_BEFORE_RETRY, READS_BEFORE_RETRY] {
            assert!((0..wait).all(|_| state.read() == ReadFrom::Iod));
            assert_eq!(state.read(), ReadFrom::IodAndAsk);
            state.replied(LoanReply::NotNow);
        }
    }
}

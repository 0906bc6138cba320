//! The loan state of an object: when a loan is requested, held, given up, and requested again.

/// Number of reads of an object before a loan is requested: one or two reads do not pay for it.
const PATIENCE: u32 = 2;
/// Number of reads after a failed request, or after a loan was given up.
const LATER: u32 = 32;

/// The loan state of one object; `L` is a loan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LoanState<L> {
    /// There is no loan; the client requests one after this number of further reads.
    Without(u32),
    /// A loan is being requested.
    Asking,
    /// There is a loan.
    Lent(L),
    /// The iod lends nothing.
    Never,
}

/// The action of a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Turn<L> {
    /// Read from this loan.
    Lent(L),
    /// Ask the iod.
    Usual,
    /// Ask the iod; the caller must also request a loan and report the answer ([`LoanState::told`]).
    UsualAndAsk,
}

/// The answer to the request of a loan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Told<L> {
    /// This loan.
    Lent(L),
    /// No loan for now.
    NotNow,
    /// The iod lends nothing.
    Never,
}

impl<L> Default for LoanState<L> {
    fn default() -> Self {
        LoanState::Without(PATIENCE)
    }
}

impl<L: Clone + PartialEq> LoanState<L> {
    /// Returns the action of the next read.
    pub(crate) fn read(&mut self) -> Turn<L> {
        match self {
            LoanState::Lent(loan) => Turn::Lent(loan.clone()),
            LoanState::Asking | LoanState::Never => Turn::Usual,
            LoanState::Without(0) => {
                *self = LoanState::Asking;
                Turn::UsualAndAsk
            }
            LoanState::Without(left) => {
                *left -= 1;
                Turn::Usual
            }
        }
    }

    /// Records the answer to a request.
    pub(crate) fn told(&mut self, told: Told<L>) {
        *self = match told {
            Told::Lent(loan) => LoanState::Lent(loan),
            Told::NotNow => LoanState::Without(LATER),
            Told::Never => LoanState::Never,
        };
    }

    /// Gives up a loan. If another one has replaced it, that one stays.
    pub(crate) fn give_up(&mut self, loan: &L) {
        if matches!(self, LoanState::Lent(held) if held == loan) {
            *self = LoanState::Without(LATER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The possible events: a read, three answers to a request, and the end of two loans, one of them long gone.
    const EVENTS: usize = 6;

    /// Compares every history of so many events with a plain model of the specification.
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
        let mut standing = LoanState::<u32>::default();
        // The model: the loan held, whether a request is open, the reads until the next request, and whether a loan is
        // possible.
        let (mut held, mut asking, mut left, mut hope, mut next) = (None, false, PATIENCE, true, 0);
        for event in history {
            match event {
                0 => {
                    let turn = standing.read();
                    match held {
                        Some(loan) => assert_eq!(turn, Turn::Lent(loan), "{history:?}"),
                        None if asking || !hope || left > 0 => assert_eq!(turn, Turn::Usual, "{history:?}"),
                        None => {
                            assert_eq!(turn, Turn::UsualAndAsk, "{history:?}");
                            asking = true;
                        }
                    }
                    left = left.saturating_sub(u32::from(held.is_none() && !asking));
                }
                // Only a caller that was told to request a loan reports an answer.
                1..=3 if !asking => {}
                1 => {
                    next += 1;
                    standing.told(Told::Lent(next));
                    (held, asking) = (Some(next), false);
                }
                2 => {
                    standing.told(Told::NotNow);
                    (asking, left) = (false, LATER);
                }
                3 => {
                    standing.told(Told::Never);
                    (asking, hope) = (false, false);
                }
                4 => {
                    let newest = next;
                    standing.give_up(&newest);
                    if held == Some(newest) {
                        (held, left) = (None, LATER);
                    }
                }
                _ => standing.give_up(&u32::MAX),
            }
        }
    }

    #[test]
    fn a_refused_loan_is_requested_again_after_some_reads() {
        let mut standing = LoanState::<u32>::default();
        for wait in [PATIENCE, LATER, LATER] {
            assert!((0..wait).all(|_| standing.read() == Turn::Usual));
            assert_eq!(standing.read(), Turn::UsualAndAsk);
            standing.told(Told::NotNow);
        }
    }
}

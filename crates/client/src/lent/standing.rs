//! Where an object stands with its loan: when one is asked for, held, given up, and asked for again.

/// How many reads of an object go by before a loan is asked for: what is read once or twice does not pay for it.
const PATIENCE: u32 = 2;
/// How many go by after one that was asked for in vain, or had to be given up.
const LATER: u32 = 32;

/// The state of one object; `L` is a loan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Standing<L> {
    /// There is none, and it is asked for after so many more reads.
    Without(u32),
    /// Somebody asks for it.
    Asking,
    /// There is one.
    Lent(L),
    /// There is none to be had.
    Never,
}

/// What a read is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Turn<L> {
    /// Read from this.
    Lent(L),
    /// Ask the iod, as ever.
    Usual,
    /// The same, and somebody has to ask for a loan, and to say what came of it ([`Standing::told`]).
    UsualAndAsk,
}

/// What came of asking.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Told<L> {
    /// This loan.
    Lent(L),
    /// None for now.
    NotNow,
    /// There is none to be had.
    Never,
}

impl<L> Default for Standing<L> {
    fn default() -> Self {
        Standing::Without(PATIENCE)
    }
}

impl<L: Clone + PartialEq> Standing<L> {
    /// Somebody is about to read.
    pub(crate) fn read(&mut self) -> Turn<L> {
        match self {
            Standing::Lent(loan) => Turn::Lent(loan.clone()),
            Standing::Asking | Standing::Never => Turn::Usual,
            Standing::Without(0) => {
                *self = Standing::Asking;
                Turn::UsualAndAsk
            }
            Standing::Without(left) => {
                *left -= 1;
                Turn::Usual
            }
        }
    }

    /// This came of asking.
    pub(crate) fn told(&mut self, told: Told<L>) {
        *self = match told {
            Told::Lent(loan) => Standing::Lent(loan),
            Told::NotNow => Standing::Without(LATER),
            Told::Never => Standing::Never,
        };
    }

    /// This loan is not to be used any more. There may be another one by now, which stays.
    pub(crate) fn give_up(&mut self, loan: &L) {
        if matches!(self, Standing::Lent(held) if held == loan) {
            *self = Standing::Without(LATER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What may happen: a read, the end of asking in three ways, and two loans that are given up, one of them long gone.
    const EVENTS: usize = 6;

    /// Every history of so many events is the same here and in a plain account of what was promised.
    #[test]
    fn every_short_history() {
        for length in 1..=6 {
            for number in 0..EVENTS.pow(length) {
                let history: Vec<usize> = (0..length).map(|n| number / EVENTS.pow(n) % EVENTS).collect();
                walk(&history);
            }
        }
    }

    fn walk(history: &[usize]) {
        let mut standing = Standing::<u32>::default();
        // By the account: the loan that is held, whether somebody asks, reads until somebody does, whether there is any hope.
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
                // Only who was told to ask says what came of it.
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
    fn it_is_asked_for_again_after_a_while() {
        let mut standing = Standing::<u32>::default();
        for wait in [PATIENCE, LATER, LATER] {
            assert!((0..wait).all(|_| standing.read() == Turn::Usual));
            assert_eq!(standing.read(), Turn::UsualAndAsk);
            standing.told(Told::NotNow);
        }
    }
}

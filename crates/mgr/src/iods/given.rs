//! Which mark each iod has: an iod that comes with an earlier one has an older copy of its disk, and would answer with bytes of that time.
//!
//! A mark is recorded for an iod before the iod gets it, and once more when it has taken it. So whatever dies in between, the iod has one of two.

use super::claims::Claims;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use types::{IodId, Status};
use xdr::{Malformed, Reader, Writer, Xdr};

const PREFIX: &[u8] = b"mgr/given/";

/// The marks of which an iod has one; 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Given {
    /// The one that it took last.
    taken: u64,
    /// One that it may have taken since.
    giving: u64,
}

impl Xdr for Given {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.taken);
        out.u64(self.giving);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Given { taken: input.u64()?, giving: input.u64()? })
    }
}

impl Given {
    /// Whether an iod that remembers this mark has lost a later one.
    fn is_behind(self, remembered: u64) -> bool {
        remembered != 0 && ![self.taken, self.giving].contains(&remembered)
    }
}

fn key(iod: IodId) -> Vec<u8> {
    [PREFIX, &iod.0].concat()
}

/// Locks of the iods that are being claimed.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<IodId, Arc<AsyncMutex<()>>>>);

impl Turns {
    /// Nobody else claims this iod as long as the guard lives.
    pub(super) async fn of(&self, iod: IodId) -> OwnedMutexGuard<()> {
        let turn = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(iod).or_default().clone();
        turn.lock_owned().await
    }
}

impl Claims {
    fn given(&self, iod: IodId) -> Result<Option<Given>, Status> {
        let record = self.namespace.registry(&key(iod))?;
        record.map(|record| Given::from_bytes(&record).map_err(|_| Status::Corrupt)).transpose()
    }

    async fn put(&self, iod: IodId, given: Option<Given>) -> Result<(), Status> {
        let record = given.map(|given| given.to_bytes());
        self.namespace.registry_put(net::clock::now().into(), &key(iod), record.as_ref()).await
    }

    /// Whether an iod that remembers this mark was given a later one; 0: it remembers none.
    pub(super) fn is_behind(&self, iod: IodId, remembered: u64) -> Result<bool, Status> {
        Ok(self.given(iod)?.is_some_and(|given| given.is_behind(remembered)))
    }

    /// An iod that has a mark, or none (0), is about to get another one; durable when it returns.
    pub(super) async fn gives(&self, iod: IodId, taken: u64, giving: u64) -> Result<(), Status> {
        let given = Given { taken, giving };
        if self.given(iod)? == Some(given) { Ok(()) } else { self.put(iod, Some(given)).await }
    }

    /// An iod has taken a mark.
    pub(super) async fn took(&self, iod: IodId, taken: u64) -> Result<(), Status> {
        self.gives(iod, taken, 0).await
    }

    /// Takes an iod as it is from now on: what it was given is not known, as the store is an older copy.
    pub(super) async fn forget_given(&self, iod: IodId) -> Result<(), Status> {
        self.put(iod, None).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iod_has_one_of_two_marks() {
        let given = Given { taken: 7, giving: 9 };
        assert_eq!([7, 9, 8, 0].map(|mark| given.is_behind(mark)), [false, false, true, false]);
        let first = Given { taken: 0, giving: 9 };
        assert_eq!([0, 9, 7].map(|mark| first.is_behind(mark)), [false, false, true]);
    }

    #[test]
    fn bytes_are_these() {
        let given = Given { taken: 258, giving: 3 };
        assert_eq!(given.to_bytes(), &[0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3][..]);
        assert_eq!(Given::from_bytes(&given.to_bytes()), Ok(given));
    }
}

//! Inode numbers: how operations get new ones, and from which one on they are free.

use super::Namespace;
use crate::engine::{Batch, Engine, Expect, RequestId, Write};
use crate::ids::BLOCK;
use crate::ops::{self, Plan};
use crate::schema::{self, Delta, NextId, Record};
use crate::tx::Tx;
use std::sync::atomic::Ordering;
use types::{Cred, FileId, Status, Timestamp};

impl<E: Engine> Namespace<E> {
    /// As [`Self::change`], with an inode number; `made` says which file an answer is about.
    pub(super) async fn make<T>(
        &self,
        cred: &Cred,
        now: Timestamp,
        made: impl Fn(&T) -> FileId,
        op: impl Fn(&mut Tx<'_>, FileId) -> Plan<T>,
    ) -> Result<T, Status> {
        let id = self.new_id().await?;
        let result = self.change(cred, now, |tx| op(tx, id)).await;
        let free = match &result {
            // Another number is that of a file that was there.
            Ok(answer) => made(answer) != id,
            // The store may have made the file all the same.
            Err(Status::Io | Status::ServerFault | Status::Corrupt) => false,
            Err(_) => true,
        };
        if free {
            self.shared.ids.add(id.0..id.0 + 1);
        }
        result
    }

    async fn new_id(&self) -> Result<FileId, Status> {
        if self.shared.held.load(Ordering::Relaxed) {
            return Err(Status::Delay);
        }
        loop {
            if let Some(id) = self.shared.ids.take() {
                return Ok(id);
            }
            let batch = Batch {
                id: RequestId(self.shared.requests.fetch_add(1, Ordering::Relaxed)),
                writes: vec![(schema::NEXT_ID.to_vec(), Write::Merge(Delta::Ids(BLOCK).to_bytes()))],
                durable: true,
                ..Batch::default()
            };
            let settled = self.outcome(self.shared.engine.submit(batch).await)?.ok_or(Status::Corrupt)?;
            let first = settled.merged.into_iter().next().and_then(|(before, _)| before).ok_or(Status::Corrupt)?;
            let first = NextId::from_value(first)?.0;
            self.shared.ids.add(first..first.checked_add(BLOCK).ok_or(Status::Corrupt)?);
        }
    }

    /// The first inode number that no file has had yet: all below have been taken, by files or for files to come.
    pub fn next_id(&self) -> Result<FileId, Status> {
        self.read(&Cred::root(), |tx| {
            let value = tx.get(schema::NEXT_ID)?.ok_or(Status::Corrupt)?;
            Ok(FileId(NextId::from_value(value)?.0))
        })
    }

    /// Has every operation that needs a new inode number answer `Delay`, or not any more.
    ///
    /// A copy of a store must not give out numbers before it is known that no later state of the store has given them out.
    pub fn hold_numbers(&self, held: bool) {
        self.shared.held.store(held, Ordering::Relaxed);
    }

    /// Gives out no number below `first` from now on, durably; numbers that were taken before and not used are forgotten.
    pub async fn skip_numbers(&self, now: Timestamp, first: FileId) -> Result<(), Status> {
        self.shared.ids.clear();
        self.change(&Cred::root(), now, |tx| {
            let value = tx.get(schema::NEXT_ID)?.ok_or(Status::Corrupt)?;
            let next = NextId::from_value(value.clone())?;
            if next.0 < first.0 {
                tx.expect(Expect::Reads(schema::NEXT_ID.to_vec(), value));
                tx.put(schema::NEXT_ID.to_vec(), NextId(first.0).to_value());
            }
            ops::known(())
        })
        .await
    }
}

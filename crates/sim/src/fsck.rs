//! A client of the CHECK request: checks the running file system as `weir fsck` does.

use crate::hosts::MGR_PORT;
use net::Address;
use net::rpc::{Connection, Limits, NoService};
use std::sync::Arc;
use std::time::Duration;
use wire::admin::{CHECK, CheckArgs, CheckReply, Finding, PROGRAM, VERSION};
use wire::rpc::{Auth, AuthSys};
use xdr::Xdr;

/// Time limit in simulated time for one page of the findings of a check.
const PATIENCE: Duration = Duration::from_secs(120);

/// Requests a check of the whole file system from the mgr, without repairs. Returns all findings.
pub async fn findings() -> Result<Vec<Finding>, String> {
    let address = Address::Tcp { host: "mgr".into(), port: MGR_PORT };
    let (limits, counters) = (Limits::default(), net::Counters::default());
    let connected = Connection::connect(&address, Arc::new(NoService), limits, counters, PATIENCE).await;
    let connection = connected.map_err(|e| format!("fsck: {e}"))?;
    let auth = Auth::Sys(AuthSys { stamp: 0, machine: Default::default(), uid: 0, gid: 0, gids: Vec::new() });
    let mut findings = Vec::new();
    let mut ask = CheckArgs { run: 0, page: 0, repair: false };
    loop {
        let reply = connection.call(PROGRAM, VERSION, CHECK, &auth, ask.to_bytes().into(), PATIENCE).await;
        let mut reply = reply.map_err(|e| format!("fsck: {e}"))?;
        let page = CheckReply::decode(&mut reply.body).map_err(|e| format!("fsck: a malformed answer: {e}"))?;
        if let Some(why) = page.refused.or(page.broken_off) {
            return Err(format!("fsck: {why}"));
        }
        findings.extend(page.findings);
        if page.end {
            return Ok(findings);
        }
        ask = CheckArgs { run: page.run, page: page.page + 1, repair: false };
    }
}

-- What standing duties go by instead of reading all of `run`: which ends are settled, and where in `run` something may be alive.

-- An ended member of which nothing is left. Whoever ended before this version is looked at once more.
alter table rota.member add column settled boolean not null default false;

alter table rota.duty
  add column full_at timestamptz not null default to_timestamp(0),  -- a round looks at everything from then on, whatever there is
  add column low timestamptz,        -- no run that is alive was claimed before
  add column looked_at timestamptz,  -- how far the next low may go, once
  add column horizon xid8;           -- all transactions before this one are over

-- By when a run came to be, which its begin, retries and end do not change: their updates stay heap-only.
create index run_claimed on rota.run (claimed_at);

-- A begin's new version of a row finds room in its page nearly always; elsewhere it needs an entry in each index.
alter table rota.run set (fillfactor = 50);

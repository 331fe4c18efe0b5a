"""PL/pgSQL that applies staged changes one statement at a time and undoes it.

`refused` fills it in. A block goes over the changes in order; what it does with each depends on
the kind of table.
"""

from __future__ import annotations

# Names of its own are never read as columns: those are always written with the table's alias.
BLOCK = """
#variable_conflict use_column
DECLARE
    r {stage}%ROWTYPE; was {stage}%ROWTYPE; o {target}%ROWTYPE;
    old_met boolean; new_met boolean; moved boolean; goes boolean; there boolean;
    seqs text[] := '{{}}'; opers text[] := '{{}}'; whys text[] := '{{}}';
BEGIN
    BEGIN
        FOR r IN SELECT * FROM {stage} s WHERE {which} ORDER BY s.{seq}, s.{oper} LOOP
            IF r.{oper} = 'B' THEN
                was := r;
                CONTINUE;
            END IF;
            BEGIN
                {change}
            EXCEPTION WHEN data_exception OR integrity_constraint_violation OR raise_exception THEN
                seqs := seqs || r.{seq};
                opers := opers || r.{oper}::text;
                whys := whys || replace(SQLERRM, {its}, {our});
            END;
        END LOOP;
        RAISE EXCEPTION USING ERRCODE = 'TR001';
    EXCEPTION WHEN SQLSTATE 'TR001' THEN
        NULL;
    END;
    INSERT INTO {into} SELECT * FROM unnest(seqs, opers, whys);
END
"""
COPY = "INSERT INTO {target} ({names}) OVERRIDING SYSTEM VALUE VALUES ({cells});"
"""Of an archive: each change is a row more."""
CHANGE = """
IF r.{oper} = 'T' THEN
    {empty};
    CONTINUE;
END IF;
moved := coalesce(r.{oper} = 'U' AND was.{seq} = r.{seq} AND {other}, false);
SELECT t.* INTO o FROM {target} t WHERE {here};
there := FOUND;
old_met := there AND {lives};
new_met := old_met;
IF moved THEN
    SELECT t.* INTO o FROM {target} t WHERE {before};
    old_met := FOUND AND {lives};
    there := old_met;
END IF;
IF r.{oper} = 'D' THEN
    IF old_met THEN
        {gone};
    END IF;
    CONTINUE;
END IF;
goes := CASE
    WHEN r.{oper} = 'I' THEN {writes} OR NOT new_met
    WHEN moved THEN (old_met OR {inserts}) AND ({writes} OR NOT new_met)
    ELSE old_met OR {inserts} END;
IF r.{oper} = 'I' THEN
    o := NULL;
    there := true;
END IF;
IF goes THEN
    IF moved AND old_met THEN
        {left};
    END IF;
    INSERT INTO {target} AS t ({names}) OVERRIDING SYSTEM VALUE VALUES ({merged})
        ON CONFLICT ({key}) DO UPDATE SET {sets};
ELSIF {whole} THEN
    INSERT INTO {probe} ({names}) OVERRIDING SYSTEM VALUE VALUES ({cells});
ELSE
    {types}
END IF;
"""
"""Of a table with a key."""
TRY = """
IF r.{oper} IN ('I', 'U') THEN
    INSERT INTO {probe} ({names}) OVERRIDING SYSTEM VALUE VALUES ({cells});
END IF;
"""
"""Rows of a bag that no other row, key or trigger has a say in."""
BAG = """
IF r.{oper} = 'T' THEN
    {empty};
    CONTINUE;
END IF;
old_met := true;
IF r.{oper} = 'D' THEN
    {gone};
    CONTINUE;
ELSIF r.{oper} = 'U' THEN
    {left};
    old_met := FOUND;
END IF;
IF old_met OR {inserts} THEN
    INSERT INTO {target} ({names}) OVERRIDING SYSTEM VALUE VALUES ({cells});
ELSE
    INSERT INTO {probe} ({names}) OVERRIDING SYSTEM VALUE VALUES ({cells});
END IF;
"""
"""A change of a table without key takes one of equal rows, and adds one."""

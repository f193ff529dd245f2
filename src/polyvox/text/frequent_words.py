# SPDX-License-Identifier: Apache-2.0
"""Frequent words of the languages with Latin letters; other languages, which have no rules, share one entry."""

FREQUENT_WORDS = {
    "english": (
        "come may hat ha ah avenue plus a part et mon war the of and to in is it its for that was are were be been "
        "with as at by not this have has had from they we you your my his her their our what which will would can "
        "could should when where how why there if about after before who than then i'm i me it's don't do does did "
        "just only please thanks thank hello hi good morning no on or an but all one new more most over under into up "
        "out off so yes he she him us very now today tomorrow yesterday per each buy call open see turn left right "
        "meet mind free price train street page pages people house car day week month year time times must want go "
        "goes went going make made said small big same also never always nothing something every other world life man "
        "woman children city number chapter book weighs read add visit costs cost fell born lasted ended got get here "
        "later because although while according hours hour minutes lives company paid version game takes need needs "
        "like know think first last next two three around between still many much some any such during both those "
        "these euros"
    ),
    "german": (
        "der die das und ist nicht ein eine einen einem einer ich du er sie wir ihr es zu mit auf für von den dem des "
        "im am um bei aus nach vor über unter durch bis auch nur noch wie was wo warum wenn dass oder aber kein keine "
        "mir mich dir dich uns euch ihre ihren sein seine haben habe hat war waren wird werden kann können bitte "
        "danke guten heute morgen gestern uhr sind sich so als an in alle mehr sehr schon hier jetzt dann zum zur "
        "beim etwa hallo tag ja nein gibt kostet kosten freundlichen grüßen achtung viel vielen ab mein meine jahr "
        "jahre jahren wurde worden siehe nimm gib lies seite rund menschen leben dort stunde stunden minuten tage "
        "wochen monate prozent grad herr frau rechnung bestellung straße stadt leute kinder zeit neue neuen neuer "
        "erste ersten geht macht kommt kommen gehen machen sagen sagt sagte wollen will muss müssen soll sollte "
        "dürfen darf weiter gut gute wieder immer nie alles nichts etwas man ob weil damit doch mal ohne gegen "
        "zwischen seit während unser unsere euro preis zug kapitel zimmer fiel krieg dauerte dauert lief wiegt wohnt "
        "fährt umsatz stieg fehlt liter"
    ),
    "french": (
        "guerre mondiale pris fin faites cuire me minutes points le la les un une des du de et est en que qui dans "
        "pour pas ne sur au aux avec ce cette ces son sa ses il elle nous vous ils elles je tu on mon ma mes ton ta "
        "tes votre vos notre nos leur leurs mais ou où donc par plus moins sans sous bonjour merci oui non très être "
        "avoir avez sont était été fait faire comme tout tous quel quelle c'est j'ai d'un d'une qu'est l'on n'est "
        "s'il à ça bonne bien encore demain hier aujourd'hui entre chez depuis après avant vers si coûte ouvert "
        "heures livre compte match fini ajoutez litre ville voir pages page prix mois semaine jour jours ans année "
        "années rue avenue numéro reste coûtent fois peut peux peuvent doit dois faut veux veut aller va vais étaient "
        "sera serait avait avaient nouveau nouvelle petit petite grand grande même aussi alors jamais toujours rien "
        "quelque quelques chaque autre autres monde vie gens homme femme enfants maison voiture train environ selon "
        "lors dont car ici là voici voilà madame monsieur né née habite appelez lisez mesure part roule pèse parti "
        "partis chapitre mme"
    ),
    "spanish": (
        "hornear guerra me manzanas abierto estamos debes quedó lugar rey el la los las un una unos unas de del y es "
        "en que qué no por para con se su sus lo al más pero como cómo está están son fue ser hay muy mi mis tu tus "
        "yo él ella usted ustedes nos les le este esta estos estas eso esto cuando cuándo dónde donde quién hola "
        "gracias buenos buenas días noches sí si sin sobre entre hasta desde también ya solo sólo hoy mañana ayer "
        "tiene tienen hace o a años cuesta quedan quisiera precio tren calle página páginas personas gente casa coche "
        "día semana mes año vez veces puede pueden debe quiero quiere hacer ir va voy vamos eran será había nuevo "
        "nueva pequeño grande mismo entonces nunca siempre nada algo cada otro otra otros mundo vida hombre mujer "
        "niños ciudad señor señora número capítulo libro mide pesa llame añade visita costó cayó nació duró terminó "
        "tengo tenemos aquí allí luego después antes porque aunque mientras según euros dólares hora horas minutos "
        "véase vive abrimos cenamos vuelo empresa pagó versión"
    ),
    "portuguese": (
        "asse fechada fechado guerra me valor século tudo navio o a os as um uma uns umas de do da dos das e é em no "
        "na nos nas que não por para com se seu sua seus suas ao à aos às mais mas como está estão são foi ser há "
        "muito meu minha meus minhas eu ele ela você vocês nós este esta isso isto quando onde quem olá obrigado "
        "obrigada bom boa dia noite sim sem sobre entre até desde também já só hoje amanhã ontem tem têm pelo pela "
        "custa faltam depois ou anos ligue preço trem rua página páginas pessoas gente casa carro semana mês ano vez "
        "vezes pode podem deve quero quer fazer ir vai vou vamos eram será havia novo nova pequeno grande mesmo então "
        "nunca sempre nada algo cada outro outra outros mundo vida homem mulher crianças cidade senhor senhora número "
        "capítulo livro mede pesa leia adicione visite custou caiu nasceu durou terminou tenho temos aqui ali logo "
        "antes porque embora enquanto segundo reais horas hora minutos veja mora filme voo empresa pagou versão jogo "
        "fica faz dívida falta responda abrimos restam"
    ),
    "italian": (
        "cuocere guerra valore chiamate insegna fu il lo la i gli le un uno una di del della dei delle dello degli e "
        "è in che non per con si su sul sulla al alla ai alle dal dalla dalle nel nella più ma come sono era essere "
        "c'è ci molto mio mia miei mie tuo suo sua io lui lei noi voi loro questo questa quando dove chi ciao grazie "
        "buongiorno buona sera sì senza sopra tra fra fino anche già solo oggi domani ieri ha hanno ho da o a ore "
        "anni costa dopo dell'anno l'anno mancano via nessun nessuna ogni prezzo treno pagina pagine persone gente "
        "casa auto giorno giorni settimana mese anno volta volte può possono deve devo voglio vuole fare andare va "
        "vado andiamo erano sarà aveva nuovo nuova piccolo grande stesso allora mai sempre niente qualcosa altro "
        "altra altri mondo vita uomo donna bambini città signor signora numero capitolo libro pesa leggi aggiungi "
        "visita caduto nato durò finita abbiamo qui lì poi prima perché mentre secondo euro ora minuti vedi abita "
        "siamo apriamo ceniamo volo azienda pagato versione partita mi ti quanto quanti sig dott nostro nostra tutti "
        "tutto quindi però parte manca"
    ),
    "other": (
        "het een niet zijn dat ik je wij hebben voor naar ook jag och är inte det som att på med ett ikke jeg og til "
        "af er nie jest się że na jak do bir ve için bu çok da de și este nu pe cu să nem és hogy egy az ja on että "
        "ei ako su za të dhe jsem není amb els però của và là không"
    ),
}
